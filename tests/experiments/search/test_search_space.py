"""Search spaces: ranges, values, the paper's space, and one-line errors."""

from __future__ import annotations

import pytest

from itl.errors import UserError
from itl.experiments.search.space import parse_space
from itl.presets import settings_for

ITL, ER = (settings_for(name, "seq-digits", 20) for name in ("itl", "er"))


def test_dimension_is_a_range_or_a_list_of_values():
    texts = ["tangent.lr=0.001..0.1:log", "tangent.epochs=10..60", "half_pipe=true,false", "augment.memory=none,stream"]
    rate, epochs, jump, policy = parse_space(texts, None, ITL, False).dimensions
    assert (rate.low, rate.high, rate.log) == (0.001, 0.1, True)
    assert (epochs.low, epochs.high, epochs.log) == (10, 60, False)
    assert list(jump.values) == [True, False]
    assert list(policy.values) == ["none", "stream"]
    assert [dimension.text for dimension in (rate, epochs)] == texts[:2]


def test_paper_space_has_the_settings_of_the_methods_stages():
    whole = {dimension.key: list(dimension.values) for dimension in parse_space([], "paper", ITL, False).dimensions}
    assert whole["specialist.lr"] == [0.1, 0.01]
    assert whole["tangent.lr"] == whole["projection.lr"] == [0.1, 0.05, 0.01]
    assert [whole[f"{stage}.momentum"] for stage in ("specialist", "tangent", "projection")] == [[0.0, 0.9]] * 3
    assert {dimension.key for dimension in parse_space([], "paper", ER, False).dimensions} == {
        "specialist.lr",
        "specialist.momentum",
    }
    after = {dimension.key for dimension in parse_space([], "paper", ITL, True).dimensions}
    assert after == whole.keys() - {"specialist.lr", "specialist.momentum"}


def test_given_range_replaces_that_of_the_paper():
    found = {
        dimension.key: dimension for dimension in parse_space(["tangent.lr=0.2..0.3"], "paper", ITL, False).dimensions
    }
    assert len(found) == 6
    assert found["tangent.lr"].values is None


def test_points_are_all_combinations_and_need_values():
    assert len(list(parse_space([], "paper", ITL, False).points())) == 2 * 2 * 3 * 2 * 3 * 2
    with pytest.raises(UserError, match="range"):
        list(parse_space(["tangent.lr=0.1..0.2"], None, ITL, False).points())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tangent.lr", "key=low..high"),
        ("=1", "key=low..high"),
        ("tangent.l=1,2", "Unknown setting 'tangent.l'"),
        ("tangent.lr=0.1..0.01", "smaller number first"),
        ("tangent.lr=0..1:log", "must be above 0"),
        ("tangent.lr=a..b", "is not a range of numbers"),
        ("tangent.lr=0.1..0.2:cubic", "is not a range of numbers"),
        ("tangent.lr=0.1,0.1", "twice"),
    ],
)
def test_invalid_dimension_gives_an_error(text, words):
    with pytest.raises(UserError, match=words):
        parse_space([text], None, ITL, False)


def test_setting_of_a_missing_stage_is_refused_unless_the_stage_is_searched_too():
    with pytest.raises(UserError, match=r"tangent\.lr would change nothing.*generalist is none"):
        parse_space(["tangent.lr=0.1,0.2"], None, ER, False)
    assert len(parse_space(["tangent.lr=0.1,0.2", "generalist=none,tangent"], None, ER, False).dimensions) == 2
    with pytest.raises(UserError, match="The space paper has no settings"):
        parse_space([], "paper", ER, True)


def test_empty_space_gives_an_error():
    with pytest.raises(UserError, match="nothing to search"):
        parse_space([], None, ITL, False)
    with pytest.raises(UserError, match="Unknown space"):
        parse_space([], "papr", ITL, False)
    with pytest.raises(UserError, match="twice"):
        parse_space(["tangent.lr=1,2", "tangent.lr=3,4"], None, ITL, False)
