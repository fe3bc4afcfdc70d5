"""How words are written for PostgreSQL: nothing in a text can break the syntax, and no text is too large."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.log.full_text import MAX_INDEXED, split_words
from treadle.log.word_vectors import MOST_BYTES, build_query, build_vectors, build_word_query, count_words


def test_a_vector_says_of_each_word_roughly_how_often_it_occurs() -> None:
    counts = count_words("one two two " + "four " * 4 + "many " * 9)
    assert build_vectors(counts) == ["'one' 'two':1C 'four':1B 'many':1A"]


@given(st.text(st.sampled_from("ab 京東がタ้ไท \n.äßé１"), max_size=200))
def test_a_text_that_is_split_in_steps_has_the_same_words(text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("treadle.log.word_vectors.CHUNK", 7)
        assert sorted(count_words(text).elements()) == sorted(split_words(text, index=True))


def test_very_many_words_are_written_as_several_vectors_with_each_word_in_one() -> None:
    text = " ".join(f"w{number:07}" for number in range(MAX_INDEXED // 9))
    vectors = build_vectors(count_words(text))
    assert len(vectors) == 2 and all(len(vector) < MOST_BYTES for vector in vectors)
    assert " ".join(vectors).replace("'", "") == text


def test_words_are_quoted_and_long_ones_shortened_alike_in_vectors_and_queries() -> None:
    assert build_word_query(r"it's a \ & b") == r"'it''s a \\ & b'"
    long = "x" * 3000
    assert build_vectors({long: 1}) == [build_word_query(long)] != [build_word_query(long + "y")]
    assert len(build_word_query("京" * 3000).encode()) < 2046
    assert build_word_query(long, is_prefix=True) == f"'{'x' * 400}':*"


def test_a_query_wants_all_words_or_any() -> None:
    words = [build_word_query("red"), build_word_query("car", is_prefix=True)]
    assert build_query(words, wants_all=True) == "'red' & 'car':*"
    assert build_query(words, wants_all=False) == "'red' | 'car':*"
