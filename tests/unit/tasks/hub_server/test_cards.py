"""Model cards: validation of their metadata, and their text as HTML."""

from __future__ import annotations

import time

import httpx2
import pytest

from tasks.hub_server import page_templates, routes_repositories
from tasks.hub_server.card_metadata import NO_METADATA, parse_card
from tasks.hub_server.page_templates import render_markdown
from tasks.hub_server.server import LocalHub


def card(metadata: str) -> str:
    return f"---\n{metadata}\n---\n# Title\n"


RESULT = "task: {type: t}, dataset: {type: d, name: D}, metrics: [{type: accuracy, value: 0.9}]"


@pytest.mark.parametrize(
    ("metadata", "error"),
    [
        ("license: apache-2.0", None),
        ("license: [mit, apache-2.0]", None),
        ("license: {name: mit}", '"license" must be a string'),
        ("license: [mit, 3]", '"license[1]" must be a string'),
        ("license: other\nlicense_name: 3", '"license_name" must be a string'),
        ("datasets: [null]", '"datasets[0]" must be a string'),
        ("tags: {a: b}", '"tags" must be a string'),
        ("widget: text", '"widget" must be an array'),
        ("model-index: {name: m}", '"model-index" must be an array'),
        ("model-index: [{name: m}]", '"model-index[0].results" is required'),
        ("model-index: [{results: []}]", '"model-index[0].name" is required'),
        ("model-index: [{name: m, results: [{" + RESULT + "}]}]", None),
        ("model-index: [{name: m, results: [{" + RESULT.partition(", dataset")[0] + "}]}]", "results[0].dataset"),
        ("model-index: [{name: m, results: [{" + RESULT.replace("type: d, ", "") + "}]}]", 'dataset.type" is required'),
        ("model-index: [{name: m, results: [{" + RESULT.replace("name: D", "name: D, config: 3") + "}]}]", "a string"),
        ("model-index: [{name: m, results: [{" + RESULT.replace(", value: 0.9", "") + "}]}]", 'value" is required'),
        ("model-index: [{name: m, results: [{" + RESULT.replace("[{", "{").replace("}]", "}") + "}]}]", "an array"),
        ("license: [unclosed", "the metadata is not YAML"),
        ("- a\n- b", "the metadata is not a mapping"),
        ("a: &a [1]\nb: *a", None),
        ("a: &a [*a]", "too many values, or too deeply nested"),
        ("a: &a [1,1,1,1,1,1,1,1]\n" + "".join(f"{n}: &{n} [{', '.join(['*' + p] * 8)}]\n" for p, n in zip("abcdefgh", "bcdefghi", strict=True)), "too many values"),
        ("a: " + "[" * 5000, "the metadata is not YAML"),
        ("a: 2026-01-01\nb: .nan\nc: !!binary aGk=", None),
        ("a: !!python/object:os.system x", "the metadata is not YAML"),
        ("a: 1\na: 2", "the metadata is not YAML"),
        ("a: !!bool foo", "the metadata is not YAML: a value or a directive cannot be parsed"),
        ("a: !!int ''", "the metadata is not YAML"),
        ("%YAML 1.1\n--- {a: 0777}", "the metadata is not YAML"),
        ('a: "\\UFFFFFFFF"', "the metadata is not YAML"),
        ('a: "\\ud800"', "half of a surrogate pair"),
        ('"\\ud800": 1', "half of a surrogate pair"),
        ('"\\ud800": 1\n"\\ud800": 2', "the metadata is not YAML"),
        ("a: 0x" + "f" * 5000, "an integer has more than 64 bits"),
        ("? 0o" + "7" * 8000 + "\n: 1", "an integer has more than 64 bits"),
        ("a: 0x1" + "0" * 16, "an integer has more than 64 bits"),
        ("a: 0x" + "f" * 16, None),
        ("a: " + "9" * 5000, "the metadata is not YAML"),
    ],
)  # fmt: skip
def test_metadata_is_validated_as_on_the_hub(metadata: str, error: str | None) -> None:
    read = parse_card(card(metadata))
    assert read.warnings == []
    assert (read.errors == []) if error is None else (error in read.errors[0])
    assert read.body == "# Title\n"


@pytest.mark.parametrize(
    "text", ["# Title\n", "---\n---\n# Title\n", "---\n{}\n---\n# Title\n", "---\nlicense: mit\n", ""]
)
def test_card_without_metadata_gets_a_warning(text: str) -> None:
    assert (parse_card(text).errors, parse_card(text).warnings) == ([], [NO_METADATA])


def test_datasets_have_no_model_index() -> None:
    assert parse_card(card("model-index: none"), is_model=False).errors == []


def html(text: str, folder: str = "") -> str:
    return render_markdown(text, base="", revision="v/1", folder=folder)


@pytest.mark.parametrize(
    ("url", "href"),
    [
        ("report.html", "/resolve/v%2F1/report.html"),
        ("./a/../b.txt", "/blob/v%2F1/b.txt"),
        ("b.md#part", "/blob/v%2F1/b.md#part"),
        ("#how-it-was-made", "#how-it-was-made"),
        ("/alice/other", "/alice/other"),
        ("https://example.org/x?y=1", "https://example.org/x?y=1"),
        ("mailto:a@example.org", "mailto:a@example.org"),
        ("javascript:alert(1)", None),
        ("JaVaScRiPt:alert(1)", None),
        ("java%0ascript:alert(1)", "/blob/v%2F1/java"),
        ("data:text/html,x", None),
        ("vbscript:x", None),
        ("file:///etc/passwd", None),
        ("http://[", "http://%5B"),
    ],
)  # fmt: skip
def test_links_that_run_code_stay_text(url: str, href: str | None) -> None:
    shown = html(f"see [this]({url}) now")
    if href is None:
        assert "href" not in shown
    else:
        assert f'href="{href}' in shown
        assert ("noopener" in shown) == (":" in href)


def test_images_of_the_repository_are_shown() -> None:
    assert 'src="/resolve/v%2F1/sub/a.png"' in html("![a](a.png)", folder="sub")
    for url in ("javascript:x", "data:image/svg+xml,x", "//elsewhere.example/a.png", "https://elsewhere.example/a.png"):
        assert "<img" not in html(f"![a]({url})")
    assert html("[![a](//elsewhere.example/a.png)](b.md)") == '<p><a href="/blob/v%2F1/b.md">[image: a]</a></p>\n'


def test_raw_html_is_escaped() -> None:
    for text in ("<script>alert(1)</script>", "a <img src=x onerror=alert(1)> b", "<style>*{}</style>", "<!-- x -->"):
        assert "<p>" in (shown := html(text))
        assert not {"<script", "<img", "<style", "<!--"} & {shown[i : i + 7] for i in range(len(shown))}
        assert "&lt;" in shown
    assert (
        html('[a](b "x\\" onclick=\\"y")') == '<p><a href="/blob/v%2F1/b" title="x&quot; onclick=&quot;y">a</a></p>\n'
    )


def test_tables_and_headings() -> None:
    shown = html("## How it *was* made?\n\n## How it was made\n\n| a | b |\n| --- | ---: |\n| 1 | 2 |\n")
    assert '<th class="right">b</th>' in shown
    assert "style=" not in shown
    assert '<h2 id="how-it-was-made">' in shown
    assert '<h2 id="how-it-was-made-1">' in shown


@pytest.mark.timeout(60)
@pytest.mark.parametrize("part", ["[", "![a", "<b>", "|a"])
def test_very_long_texts_are_shown_as_they_are(part: str) -> None:
    shown = render_markdown(part * (512 << 10), base="", revision="main")
    assert shown.startswith("<pre>")
    assert "<b>" not in shown


def chained(levels: int, width: int, *, merge: bool) -> str:
    """Mappings of which each has the one before several times, by merge keys or as values."""
    lines = ["a0: &a0 {x: 1}"]
    for n in range(1, levels):
        again = [f"*a{n - 1}"] * width
        inside = f"<<: [{', '.join(again)}]" if merge else ", ".join(f"k{i}: {one}" for i, one in enumerate(again))
        lines.append(f"a{n}: &a{n} {{{inside}}}")
    return "\n".join(lines)


HEADS = {
    "merge keys": chained(30, 8, merge=True),
    "aliases": chained(30, 8, merge=False),
    "sets": "a0: &a0 !!set {x, y}\n" + "\n".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 60)),
    "an alias inside of itself": "a: &a [*a]",
    "a merge of itself": "a: &a {b: 1, <<: *a}",
    "many values": "a: [" + "1, " * 40_000 + "1]",
    "blocks": "- " * 400 + "a",
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_metadata_that_grows_is_refused_before_it_is_built(head: str) -> None:
    (error,) = parse_card(f"---\n{head}\n---\n# A model\n").errors
    assert "too many values" in error or "merge key" in error


def test_aliases_are_read() -> None:
    head = "base: &base {type: a, name: b}\nlist: [*base, *base]"
    base = {"type": "a", "name": "b"}
    assert parse_card(f"---\n{head}\n---\n").metadata == {"base": base, "list": [base, base]}


def test_anonymous_requests_to_validate_cards_are_limited(hub: LocalHub) -> None:
    def post(head: str, **headers: str) -> httpx2.Response:
        body = {"repoType": "model", "content": f"---\n{head}\n---\n"}
        return httpx2.post(f"{hub.endpoint}/api/validate-yaml", json=body, headers=headers, timeout=60)

    long = f"a: '{'x' * (16 << 10)}'"
    refused = post(long)
    assert (refused.status_code, "token" in refused.json()["error"]) == (413, True)
    assert post(long, Authorization="Bearer token-of-alice").status_code == 200
    with routes_repositories._anonymous_cards:
        assert post("a: 1").status_code == 200
        with routes_repositories._anonymous_cards:
            assert post("a: 2").status_code == 503, "two others are being checked"
            assert post("a: 2", Authorization="Bearer token-of-alice").status_code == 200
    assert post("a: 2").status_code == 200


SIZE = 128 << 10
HOSTILE_TEXTS = [
    "[",
    "![",
    "[a](",
    "**a *",
    "*",
    "_a ",
    "~~a ",
    "<",
    "<a@b.c>",
    "`",
    "&",
    "# a\n",
    "a\n",
    "---\n",
    "1. a\n",
]
HOSTILE_TEXTS += [
    "> ",
    ">\n",
    "- a\n",
    "a\n=\n",
    "|a|b|\n",
    "![a](b)",
    "[a]: b\n",
    "    a\n",
    "```\na\n",
    "\n",
    " ",
    "\\*",
]


@pytest.mark.parametrize("piece", HOSTILE_TEXTS)
def test_no_text_is_much_work(piece: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many comments take the parser no more steps than two texts may, and a second visit takes none."""
    monkeypatch.setattr(page_templates, "_MAX_STEPS", 2000)
    page_templates._render_markdown.cache_clear()
    text = (piece * SIZE)[: SIZE // 8]
    render = page_templates.render_comments("/a/b", "main")
    begin = time.thread_time()
    for number in range(20):
        render(text + str(number))
    assert time.thread_time() - begin < 2
    render(text + "0")
    assert page_templates._render_markdown.cache_info().hits <= 1
    _, steps = page_templates._render_markdown(text, "/a/b", "main", "", anchors=False)
    assert steps <= page_templates._MAX_STEPS
    page_templates._render_markdown.cache_clear()


def test_long_card_is_rendered_and_hostile_one_is_shown() -> None:
    card = (
        "# Title\n\nSome text with a [link](a.md), *emphasis* and `code`.\n\n| a | b |\n| - | - |\n| 1 | 2 |\n\n" * 400
    )
    assert "<h1" in page_templates.render_markdown(card, base="/a/b", revision="main")
    hostile = "<b>" + "![" * (SIZE // 3)
    assert page_templates.render_markdown(hostile, base="/a/b", revision="main").startswith("<pre>&lt;b&gt;![![")


def test_metadata_are_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"---\na: [{', '.join(map(str, range(4000)))}]\n---\n"
    assert parse_card(text).errors == []
    monkeypatch.setattr("tasks.hub_server.card_metadata._parse", None)
    assert parse_card(text).errors == []
    too_many = f"---\na: [{', '.join(map(str, range(6000)))}]\n---\n"
    monkeypatch.undo()
    assert "too many values" in parse_card(too_many).errors[0]
