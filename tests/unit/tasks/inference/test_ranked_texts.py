"""A ranker puts documents in order, with the scores of sentence-transformers."""

from __future__ import annotations

import json

import pytest
import transformers

from params import DataError
from tasks.digests import PROVENANCE
from tasks.inference import command
from tasks.inference.tried_model import AnsweringModel, AnswerOptions
from tests.support.pretrained import CONFIGS, write_model

QUERY = "what about the rain"
DOCUMENTS = ("the rain in this place", "bread, soup and rice", " ", "a train", "How do I get there?")


@pytest.fixture
def ranker(tmp_path):
    """A release of a cross-encoder whose tokenizer cuts pairs."""
    write_model(tmp_path / "masked")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "masked")
    tokenizer.model_max_length = 16
    config = transformers.BertConfig(vocab_size=len(tokenizer), num_labels=1, **CONFIGS["bert"])
    transformers.set_seed(4)
    network = transformers.BertForSequenceClassification(config)
    network.classifier.weight.data *= 20  # of random weights, all scores are alike
    network.save_pretrained(tmp_path / "release")
    tokenizer.save_pretrained(tmp_path / "release")
    (tmp_path / "release" / PROVENANCE).write_text(json.dumps({"objective": {"name": "ranking"}}))
    return tmp_path / "release"


def test_documents_are_in_the_order_and_have_the_scores_of_sentence_transformers(ranker, tmp_path):
    from sentence_transformers import CrossEncoder

    model = AnsweringModel.load(ranker, "here")
    answer = model.answer(QUERY, AnswerOptions(among=DOCUMENTS))
    known = [text for text in DOCUMENTS if text.strip()]
    theirs = CrossEncoder(str(ranker))
    scores = dict(zip(known, theirs.predict([(QUERY, text) for text in known]).tolist(), strict=True))
    assert [one.text for one in answer.ranked] == sorted(known, key=lambda text: -scores[text])
    assert [one.probability for one in answer.ranked] == pytest.approx(sorted(scores.values(), reverse=True), abs=1e-5)
    assert answer.said == [one.text for one in answer.ranked]
    assert answer.lines()[0] == f"{answer.ranked[0].probability:.3f}  {answer.ranked[0].text}"
    below = model.answer("\n".join([QUERY, *DOCUMENTS]), AnswerOptions())
    assert below.ranked == answer.ranked, "on a page, the lines below the first"
    pair = model.answer(json.dumps({"text": QUERY, "text_pair": known[0]}), AnswerOptions())
    assert pair.labels[0].probability == pytest.approx(scores[known[0]], abs=1e-5)
    long = model.answer(QUERY, AnswerOptions(among=("the rain " * 20, "a")))
    assert long.note == "the model did not read the end of 1 of 2 documents"


@pytest.mark.parametrize("version", [3, 5, 6])
def test_cross_encoder_of_others_is_known_by_what_their_library_writes(ranker, version):
    from sentence_transformers import CrossEncoder

    (ranker / PROVENANCE).unlink()
    if version == 6:
        CrossEncoder(str(ranker)).save_pretrained(str(ranker))
        assert (ranker / "modules.json").exists(), "as an embedding has"
    else:
        activation = "torch.nn.modules.linear.Identity"
        own = {5: {"sentence_transformers": {"activation_fn": activation}}}
        own[3] = {"sbert_ce_default_activation_function": activation}
        config = json.loads((ranker / "config.json").read_text()) | own[version]
        (ranker / "config.json").write_text(json.dumps(config))
    model = AnsweringModel.load(ranker, "here")
    assert len(model.answer(QUERY, AnswerOptions(among=DOCUMENTS)).ranked) == 4


def test_documents_come_from_arguments_or_a_file_and_must_be_there(ranker, monkeypatch, capsys):
    files = type("Files", (), {"folder": ranker, "where": "here", "repo_id": "a/b", "commit": "c", "tag": None})
    monkeypatch.setattr(command, "fetch_published_model", lambda *_: files)
    monkeypatch.setattr(command.ModelReference, "parse", lambda name: name)
    command.try_model("x", [QUERY, *DOCUMENTS], against=None, options=AnswerOptions())
    shown = capsys.readouterr().out.splitlines()
    assert (shown[0], len(shown)) == (f"> {QUERY}", 6)
    command.try_model("x", [QUERY], against=None, options=AnswerOptions(among=DOCUMENTS), as_json=True)
    (answer,) = json.loads(capsys.readouterr().out)["answers"]
    assert {*answer["ranked"][0]} == {"text", "probability"}
    with pytest.raises(DataError, match="give several texts, or --among FILE"):
        command.try_model("x", [QUERY], against=None, options=AnswerOptions())
