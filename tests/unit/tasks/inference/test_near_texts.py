"""An embedding finds the nearest texts, by the vectors that sentence-transformers gives."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from torch.nn import functional as F

from params import DataError, ModelError
from params.schema import ObjectiveChoice
from tasks.inference.command import read_lines
from tasks.inference.tried_model import AnsweringModel, AnswerOptions
from tests.support.pretrained import CONFIGS, write_model
from trainer import objectives
from trainer.objectives.bases.vectors import sentence_transformers_files as files

TEXTS = ("the rain in this place", "bread, soup and rice", " ", "a train", "How do I get there?")


@pytest.fixture(params=["encoder", "decoder"])
def embedding(tmp_path, request):
    """A release of embeddings with prompts, whose tokenizer cuts texts; that of a decoder pads before them, and the last token counts."""
    write_model(tmp_path / "masked")
    side = "left" if request.param == "decoder" else "right"
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "masked", padding_side=side)
    tokenizer.model_max_length = 12
    files.set_prompts(tokenizer, "find: ", "read: ")
    tokenizer.save_pretrained(tmp_path / "release")
    kind = "llama" if request.param == "decoder" else "bert"
    config = transformers.AutoConfig.for_model(kind, vocab_size=len(tokenizer), **CONFIGS[kind])
    network = transformers.AutoModel.from_config(config)
    files.parts_of(network.config, "lasttoken" if request.param == "decoder" else "mean")
    network.save_pretrained(tmp_path / "release")
    files.write_files(tmp_path / "release")
    return tmp_path / "release"


def test_vectors_are_those_of_sentence_transformers_also_of_texts_with_outer_white_space(embedding):
    """That library no longer strips texts. A line end at the end of a text is a token, which a model that reads the last one answers with."""
    from sentence_transformers import SentenceTransformer

    texts = ["what about the rain", "  a train", "and a road\n", "\tbread, soup and rice "]
    theirs = SentenceTransformer(str(embedding))
    queries, documents = (
        F.normalize(torch.tensor(ask(texts))) for ask in (theirs.encode_query, theirs.encode_document)
    )
    network, tokenizer = (
        auto.from_pretrained(embedding) for auto in (transformers.AutoModel, transformers.AutoTokenizer)
    )
    objective = objectives.build_objective(ObjectiveChoice(name="embedding"))
    rows = [{"row_id": i, "anchor": text, "positive": text} for i, text in enumerate(texts)]
    found = objective.encode(rows, tokenizer, 12, {})
    batch = objective.collate([one.examples[0] for one in found], tokenizer)
    of_corpus = objective.collate(objective.vector_space.encode_documents(texts, tokenizer, 12), tokenizer)
    with torch.no_grad():
        own = F.normalize(objective.embed(network.eval(), batch), dim=-1)
        documents_of_corpus = F.normalize(objective.embed(network, of_corpus), dim=-1)
        tried = files.embed_texts(network, tokenizer, texts, "query")
    for expected, ours in (
        (queries, own[:, 0]),
        (documents, own[:, 1]),
        (documents, documents_of_corpus[:, 0]),
        (queries, tried),
    ):
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-5)


def test_nearest_texts_come_first_with_the_cosines_of_sentence_transformers(embedding):
    from sentence_transformers import SentenceTransformer

    model, query = AnsweringModel.load(embedding, "here"), "what about the rain"
    answer = model.answer(query, AnswerOptions(among=(*TEXTS, query)))
    assert {one.text for one in answer.near} == {text for text in TEXTS if text.strip()}, "not the query itself"
    theirs = SentenceTransformer(str(embedding))
    found = theirs.similarity(theirs.encode_query([query]), theirs.encode_document([one.text for one in answer.near]))
    assert [one.cosine for one in answer.near] == pytest.approx(found[0].tolist(), abs=1e-5)
    assert [one.cosine for one in answer.near] == pytest.approx(sorted(found[0].tolist(), reverse=True), abs=1e-5)
    assert answer.said == answer.near[0].text
    assert answer.lines()[0].split(maxsplit=1)[1] == answer.near[0].text
    below = model.answer("\n".join([query, *TEXTS]), AnswerOptions())
    assert below.near == answer.near, "on a page, the lines below the first"
    assert model.answer("the rain " * 20, AnswerOptions(among=TEXTS)).note.startswith("the model read the first 12 of")


def test_what_cannot_be_searched_is_said(embedding, tmp_path):
    with pytest.raises(DataError, match=r"there are none\n  fix: give several texts, or --among FILE"):
        AnsweringModel.load(embedding, "here").answer("alone", AnswerOptions())
    (tmp_path / "none.txt").write_text(" \n")
    for name, said in (("none.txt", "holds no text"), ("missing.txt", "cannot be read")):
        with pytest.raises(DataError, match=said):
            read_lines(tmp_path / name)
    (tmp_path / "some.txt").write_text("one\n\n two \n")
    assert read_lines(tmp_path / "some.txt") == ("one", "two")
    modules = json.loads((embedding / files.MODULES).read_text())
    (embedding / files.MODULES).write_text(json.dumps([*modules, {"type": "a.Dense", "path": "2_Dense"}]))
    content = json.loads((embedding / "config.json").read_text())
    del content[files.KEY]
    (embedding / "config.json").write_text(json.dumps(content))
    with pytest.raises(ModelError, match="Dense"):
        AnsweringModel.load(embedding, "here").answer("a\nb", AnswerOptions())
