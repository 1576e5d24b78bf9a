"""What the runner of the virtual machines decides, without one."""

import lzma
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rdma.vm.__main__ import HUNG, MISSING, Lab, Limit, at_once, main
from tests.rdma.vm.images import fingerprint, python_folders
from tests.rdma.vm.initrd import archive
from tests.rdma.vm.kernel import load_order, unpacked
from tests.rdma.vm.machine import HungError, Machine, Running, wait
from tests.rdma.vm.missing import bindings, is_dynamic

_REPOSITORY = Path(__file__).parents[2]


def test_a_module_is_loaded_behind_what_it_needs_and_once() -> None:
    dependencies = (
        "kernel/rdma_rxe.ko: kernel/ib_uverbs.ko kernel/ib_core.ko\n"
        "kernel/ib_uverbs.ko: kernel/ib_core.ko\n"
        "kernel/ib_core.ko:\n"
        "kernel/unwanted.ko: kernel/ib_core.ko\n"
    )
    assert load_order(dependencies, ("ib_uverbs", "rdma_rxe")) == [
        "kernel/ib_core.ko",
        "kernel/ib_uverbs.ko",
        "kernel/rdma_rxe.ko",
    ]


def test_a_module_that_is_built_in_is_not_loaded() -> None:
    assert load_order("kernel/a-b.ko:\n", ("built_in", "a_b")) == ["kernel/a-b.ko"]


@pytest.mark.parametrize("packed", [lzma.compress(b"\x7fELF kernel"), b"packed otherwise"])
def test_a_kernel_is_taken_out_of_its_image_if_xz_packed_it(packed: bytes) -> None:
    setup = bytearray(3 * 512)
    setup[0x1F1] = 2
    struct.pack_into("<II", setup, 0x248, 16, len(packed))
    image = bytes(setup) + b"\0" * 16 + packed + b"behind it"
    assert unpacked(image) == (b"\x7fELF kernel" if packed[:1] == b"\xfd" else image)


@pytest.mark.skipif(shutil.which("cpio") is None, reason="cpio is not installed")
def test_the_archive_is_what_cpio_takes_it_for(tmp_path: Path) -> None:
    made = archive(("bin",), {"init": b"first", "bin/busybox": b"12345"}, {"sh": "busybox"})
    subprocess.run(["cpio", "-id", "--quiet"], input=made, cwd=tmp_path, check=True)
    assert (tmp_path / "init").read_bytes() == b"first"
    assert os.access(tmp_path / "init", os.X_OK)
    assert (tmp_path / "bin" / "sh").read_bytes() == b"12345"


def test_a_folder_is_another_once_a_package_has_another_version(tmp_path: Path) -> None:
    (tmp_path / "it-1.0.dist-info").mkdir()
    before = fingerprint(tmp_path)
    (tmp_path / "__pycache__").mkdir()
    assert fingerprint(tmp_path) == before
    (tmp_path / "it-1.0.dist-info").rename(tmp_path / "it-1.1.dist-info")
    assert fingerprint(tmp_path) != before


def test_packages_behind_a_link_have_their_image_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path / "link"))
    assert python_folders() == [tmp_path / "there"] * 2


def test_pyverbs_alone_of_its_folder_is_made_visible(tmp_path: Path) -> None:
    assert [each.name for each in bindings(bindings(tmp_path / "path")).iterdir()] == ["pyverbs"]


def test_a_program_with_shared_libraries_is_known_as_one() -> None:
    assert is_dynamic(Path(sys.executable).resolve().read_bytes())


def test_a_machine_alone_has_a_device_of_its_own(tmp_path: Path) -> None:
    machine = Machine(tmp_path, ("echo", "a b"), Path("/a folder"), environ={"X": "1 2"})
    enter = machine.enter()
    assert "rdma link add rxe0 type rxe netdev dummy0" in enter
    assert "cd '/a folder'\n" in enter
    assert enter.endswith("'X=1 2' echo 'a b'\n")
    assert "virtio-net-pci" not in " ".join(machine.words(Path("k"), Path("i")))


def test_two_machines_hear_each_other_and_are_told_apart(tmp_path: Path) -> None:
    ends = (Path("/s/1"), Path("/s/2"))
    one, two = (
        " ".join(
            Machine(tmp_path, ("true",), tmp_path, address=f"10.77.0.{number}", wire=wire).words(
                Path("k"), Path("i")
            )
        )
        for number, wire in ((1, ends), (2, ends[::-1]))
    )
    assert "local.path=/s/1,remote.path=/s/2" in one
    assert "local.path=/s/2,remote.path=/s/1" in two
    assert "mac=52:54:00:77:00:01" in one
    assert "mac=52:54:00:77:00:02" in two


def test_images_stand_for_their_folders_in_the_order_of_the_disks(tmp_path: Path) -> None:
    images = ((Path("one.ext4"), Path("/one")), (Path("two.ext4"), Path("/two")))
    machine = Machine(tmp_path, ("true",), tmp_path, images=images)
    assert machine.images_table() == "vda /one\nvdb /two\n"


def test_a_disk_to_write_to_comes_behind_the_images(tmp_path: Path) -> None:
    images = ((Path("one.ext4"), Path("/one")),)
    machine = Machine(tmp_path, ("true",), tmp_path, images=images, disk=Path("disk"))
    assert machine.images_table() == "vda /one\n"
    assert "mount -t ext4 /dev/vdb /run/disk" in machine.enter()
    drives = [word for word in machine.words(Path("k"), Path("i")) if word.startswith("if=none")]
    assert [("readonly=on" in drive, drive.rpartition("=")[2]) for drive in drives] == [
        (True, "one.ext4"),
        (False, "disk"),
    ]
    assert "/run/disk" not in Machine(tmp_path, ("true",), tmp_path, images=images).enter()


def test_a_comma_in_a_path_ends_no_option(tmp_path: Path) -> None:
    machine = Machine(Path("/a,b"), ("true",), tmp_path)
    assert "id=vm,path=/a,,b,security" in " ".join(machine.words(Path("k"), Path("i")))


def _pretend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Running:
    """A machine whose emulator is a shell script, run in the machine's folder."""
    machine = Machine(tmp_path, ("true",), tmp_path)
    monkeypatch.setattr(Machine, "words", lambda *_: ["sh", "-c", f"cd '{tmp_path}'; {script}"])
    return Running(machine, Path("k"), Path("i"), tmp_path / "output")


def test_the_status_is_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with _pretend(tmp_path, monkeypatch, "echo up >up; echo 7 >status") as running:
        assert wait(running, 10, 10) == 7


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("exec cat", "did not boot within"),
        ("echo up >up; exec cat", "did not end within"),
        ("true", "in its boot without a status"),
        ("echo up >up", "under its command without a status"),
    ],
)
def test_a_machine_that_hangs_or_dies_is_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, why: str
) -> None:
    boot_seconds = 0.2 if "up" not in script else 10
    with (
        _pretend(tmp_path, monkeypatch, script) as running,
        pytest.raises(HungError, match=why),
    ):
        wait(running, boot_seconds, 0.5)


def _without_anything(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tests.rdma.vm.missing._FOLDERS", (str(tmp_path),))
    monkeypatch.delenv("RDMA_MAY_BE_MISSING", raising=False)


def test_what_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _without_anything(monkeypatch, tmp_path)
    assert main(["run", "true"]) == MISSING != HUNG
    said = capsys.readouterr().err
    assert "qemu-system-x86_64 (Debian's package qemu-system-x86)" in said
    assert "busybox-static" in said


def test_what_is_missing_may_be_missing_if_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _without_anything(monkeypatch, tmp_path)
    assert main(["test"]) == MISSING
    monkeypatch.setenv("RDMA_MAY_BE_MISSING", "1")
    assert main(["test"]) == 0
    assert "not tested here" in capsys.readouterr().err


class _Clock:
    """Tells the time that it was set to."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_parts_that_are_tested_at_once_tell_how_long_they_took(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = _Clock()
    limit = Limit(100, clock)

    def takes_a_while() -> int:
        clock.seconds += 30
        return 0

    assert at_once({"one": takes_a_while}, limit) == 0
    assert capsys.readouterr().err == "one: 30 s, status 0\nall: 30 s of at most 100 s\n"


def test_a_part_that_fails_or_hangs_leaves_the_other_to_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def hangs() -> int:
        raise HungError("it did not boot")

    assert at_once({"one": lambda: 0, "two": lambda: 3}, Limit(100)) == 3
    capsys.readouterr()
    assert at_once({"one": hangs, "two": lambda: 0}, Limit(100)) == HUNG
    said = capsys.readouterr().err
    assert "one: 0 s, status 70: the virtual machine hung: it did not boot" in said
    assert "two: 0 s, status 0" in said


def test_tests_that_take_too_long_fail_and_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    clock = _Clock()
    limit = Limit(100, clock)

    def takes_long() -> int:
        clock.seconds += 101
        return 0

    assert at_once({"one": takes_long}, limit) == HUNG
    said = capsys.readouterr().err
    assert "all: 101 s of at most 100 s" in said
    assert "that was too long" in said


def test_a_machine_has_what_is_left_of_the_time_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.rdma.vm.__main__.CACHE", tmp_path)
    monkeypatch.setattr("tests.rdma.vm.__main__.missing", lambda _: [])
    for name in ("kernel", "initrd", "empty_disk"):
        monkeypatch.setattr(f"tests.rdma.vm.__main__.{name}", lambda *_: Path("made"))
    monkeypatch.setattr("tests.rdma.vm.__main__.python_images", lambda _: ())
    monkeypatch.setattr(Machine, "words", lambda *_: ["cat"])
    lab = Lab(boot_seconds=100, seconds=100)
    lab.limit_to(0.2)
    with pytest.raises(HungError, match="did not boot within 0 s"):
        lab.run(["true"])


@pytest.mark.parametrize(
    ("role", "collected"), [("", []), ("one", ["verbs"]), ("second", ["link"])]
)
def test_what_wants_a_machine_is_collected_in_it_alone(role: str, collected: list[str]) -> None:
    words = [sys.executable, "-c", "import tests.rdma.conftest as c; print(*c.collect_ignore)"]
    environ = os.environ | {"FEEDRACK_RDMA_GUEST": role}
    done = subprocess.run(words, cwd=_REPOSITORY, env=environ, capture_output=True, text=True)
    assert done.stdout.split() == [each for each in ("verbs", "link") if each not in collected]
