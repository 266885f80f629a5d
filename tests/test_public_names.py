"""What ``import spiritlevel`` alone gives: every public name, each loaded when it is asked for."""

import importlib

import spiritlevel


def test_every_public_name_is_loaded_when_asked_for() -> None:
    assert set(spiritlevel.__all__) == {*spiritlevel._PUBLIC, *spiritlevel._MODULES, "__version__"}
    for name in {*spiritlevel._PUBLIC, *spiritlevel._MODULES}:
        # Not by ``getattr``, which would find a module that something else has imported already.
        found = spiritlevel.__getattr__(name)
        assert found.__name__.rpartition(".")[2] == name


def test_public_modules_are_imported_by_their_public_path_too() -> None:
    for name, place in spiritlevel._MODULES.items():
        found = importlib.import_module(f"spiritlevel.{name}")
        assert found is importlib.import_module(place) is getattr(spiritlevel, name)
        assert found.__spec__ is not None
        assert found.__spec__.name == place
    from spiritlevel.losses import NAMES

    assert "cross_entropy" in NAMES
