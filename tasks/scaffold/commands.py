"""The commands `new` and `remove`, for tasks/commands.py: imported at the start of every command, so they import late."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option


def new(
    name: Annotated[str, Argument(metavar="NAME", help="Name of the new recipe.")],
    *,
    data: Annotated[
        list[str],
        Option(metavar="WHERE", help="File, folder or glob; hub:owner/name[@revision]; or sqlite:///rows.db."),
    ],
    query: Annotated[str | None, Option(help="SELECT that gives the rows of a database.")] = None,
    test: Annotated[str | None, Option(metavar="FILE", help="Held-out rows. By default a file named test.")] = None,
    validation: Annotated[str | None, Option(metavar="FILE", help="Rows that choose the best checkpoint.")] = None,
    corpus: Annotated[
        str | None, Option(metavar="FILE", help="Documents that held-out queries search, for an embedding.")
    ] = None,
    model: Annotated[
        str | None, Option(metavar="WHERE", help="Folder; owner/name[@revision] on the Hub; or new, a small one.")
    ] = None,
    objective: Annotated[str | None, Option(metavar="NAME", help="What to learn.")] = None,
    text: Annotated[str | None, Option(metavar="COLUMN", help="Column with the text.")] = None,
    text_pair: Annotated[str | None, Option(metavar="COLUMN", help="Column with a second text, of pairs.")] = None,
    label: Annotated[str | None, Option(metavar="COLUMN", help="Column with the label.")] = None,
    labels: Annotated[
        str | None, Option(metavar="COLUMN", help='Column with several labels, or a column for each: "{a} {b}".')
    ] = None,
    score: Annotated[list[str] | None, Option(metavar="COLUMN", help="Column with the number to predict.")] = None,
    spans: Annotated[str | None, Option(metavar="COLUMN", help="Column with spans.")] = None,
    prompt: Annotated[
        str | None, Option(metavar="COLUMN", help='Column with the prompt or the input, or several: "{a} {b}".')
    ] = None,
    completion: Annotated[str | None, Option(metavar="COLUMN", help="Column with the answer, or the target.")] = None,
    messages: Annotated[str | None, Option(metavar="COLUMN", help="Column with conversations.")] = None,
    chosen: Annotated[str | None, Option(metavar="COLUMN", help="Column with the better answer.")] = None,
    rejected: Annotated[str | None, Option(metavar="COLUMN", help="Column with the worse answer.")] = None,
    question: Annotated[str | None, Option(metavar="COLUMN", help="Column with the question.")] = None,
    context: Annotated[str | None, Option(metavar="COLUMN", help="Column with what a question is about.")] = None,
    answers: Annotated[str | None, Option(metavar="COLUMN", help="Column with answers and their places.")] = None,
    choices: Annotated[
        str | None, Option(metavar="COLUMN", help='Column with lists of choices, or several: "{a} {b}".')
    ] = None,
    liked: Annotated[str | None, Option(metavar="COLUMN", help="Column that says whether the answer is good.")] = None,
    source_language: Annotated[
        str | None, Option(metavar="CODE", help="Language of inputs, as a translation model's tokenizer names it.")
    ] = None,
    target_language: Annotated[str | None, Option(metavar="CODE", help="Language of targets.")] = None,
    option: Annotated[
        list[str] | None, Option(metavar="KEY=VALUE", help="Option of the objective, such as one of your own.")
    ] = None,
    max_quarantined: Annotated[
        float | None, Option(metavar="SHARE", help="Share of bad rows to set aside; above 0.05 only with this.")
    ] = None,
    repo_id: Annotated[
        str | None, Option(metavar="OWNER/NAME", help="Where to publish. By default evergreen/NAME.")
    ] = None,
    schedule: Annotated[str, Option(metavar="CRON", help="When to run, in UTC.")] = "0 3 * * *",
    yes: Annotated[bool, Option("--yes", help="Do not ask; an open question is an error.")] = False,
) -> None:
    """Write a recipe for your data and model, and schedule it.

    Looks at a sample of the rows and at the model, and writes params/NAME.yaml with a reason for every choice, its item in
    recipes.yaml and its deployment in prefect.yaml. The same call again changes nothing; `remove` undoes it.
    """
    from params import RecipeError
    from params.foundation import command_result
    from tasks.scaffold.new import create_recipe
    from tasks.scaffold.request import COLUMN_FLAGS, NewRecipeRequest, read_options

    scores = score or []
    columns_line = f"`label_column: [{', '.join(scores)}]` into the section objective"
    more = {"--data": "the others into `data.sources`, as docs/own-data.md says,", "--score": columns_line}
    for flag, several in {"--data": data, "--score": scores}.items():
        if len(several) > 1:
            fix = f"give {flag} {several[0]} alone, and then write {more[flag]} of params/{name}.yaml"
            raise RecipeError(flag, f"is there {len(several)} times, and a recipe is proposed for one", fix)
    number = next(iter(scores), None)
    texts = (text, text_pair, label, labels, number, spans, prompt, completion, messages, chosen, rejected)
    given = (*texts, question, context, answers, choices, liked)
    columns = {flag: column for flag, column in zip(COLUMN_FLAGS, given, strict=True) if column}
    may_ask = not yes and sys.stdin.isatty() and sys.stdout.isatty()
    languages = {"source_language": source_language, "target_language": target_language}
    options = read_options(option or []) | {name: language for name, language in languages.items() if language}
    asked = (columns, repo_id, schedule, may_ask, max_quarantined, corpus, options)
    request = NewRecipeRequest(name, data[0], query, test, validation, model, objective, *asked)
    kept = f"the recipe {name} is written as a whole or not at all\n  start again"
    with command_result.explain_keyboard_interrupt(kept):
        create_recipe(request)


def convert(
    files: Annotated[list[str], Argument(metavar="FILE...", help="Files whose rows no objective reads, or globs.")],
    to: Annotated[Path, Argument(metavar="TO", help="File to write, such as rows.jsonl; of several files, a folder.")],
    *,
    names: Annotated[str, Option(metavar="NAME,NAME", help="Names of tags that are numbers, from 0 on.")] = "",
    sheet: Annotated[str | None, Option(metavar="NAME", help="Sheet of a workbook. By default the first.")] = None,
    header: Annotated[str, Option(metavar="NAME,NAME", help="Names of the columns of a table without a header.")] = "",
    quotes: Annotated[
        str, Option(metavar="WHERE", help="around-cells or characters: what quotes of a table are.")
    ] = "",
    encoding: Annotated[str, Option(metavar="NAME", help="Encoding of text that is not UTF-8, such as cp1252.")] = "",
    escape_controls: Annotated[bool, Option("--escape-controls", help="JSON has line ends in its texts.")] = False,
) -> None:
    """Write rows in a form that `new` reads.

    Tags of words become spans, JSON text what it says, records a column of each, a workbook of Excel CSV. Files that are converted
    together get the same columns. Tables, other encodings, JSON and Arrow are copied, and each copy is compared with its file. `new`
    says where this is needed.
    """
    from tasks.scaffold.convert import convert_files
    from tasks.scaffold.copies import CopyOptions

    copying = CopyOptions(_list_names(header), quotes, encoding, escape_controls)
    convert_files(files, to, _list_names(names), sheet, copying)


def _list_names(names: str) -> list[str]:
    return [name for name in names.split(",") if name]


def remove(
    name: Annotated[str, Argument(metavar="NAME", help="Name of the recipe.")],
    *,
    yes: Annotated[bool, Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Remove a recipe with its item and its deployments.

    The opposite of `new`. Asks first. What its runs have left and what is published stay.
    """
    from tasks.scaffold.project import remove_recipe

    remove_recipe(name, yes=yes)
