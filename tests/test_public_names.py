"""What ``import spiritlevel`` alone gives: every public name, each loaded when it is asked for."""

import spiritlevel


def test_every_public_name_is_loaded_when_asked_for() -> None:
    assert set(spiritlevel.__all__) == {*spiritlevel._PUBLIC, *spiritlevel._MODULES, "__version__"}
    for name in {*spiritlevel._PUBLIC, *spiritlevel._MODULES}:
        # Not by ``getattr``, which would find a module that something else has imported already.
        found = spiritlevel.__getattr__(name)
        assert found.__name__.rpartition(".")[2] == name
