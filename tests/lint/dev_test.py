#!/usr/bin/env python3
"""Tests functions of ./dev and of the files that it sources, in copies of them, with another cache and a stub of pip."""

import fcntl
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FETCH = "fetch tool-1 'a tool' tool==1"
SOURCED = ("tests/commands.sh", "tests/bench/commands.sh", "deploy/image.sh", "deploy/bundle.sh")


class DevTest(unittest.TestCase):

  def setUp(self):
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    self._folder = Path(folder.name)
    for name in ("aft-serve", "venv/bin"):
      (self._folder / name).mkdir(parents=True)
    self._copy("dev", *SOURCED)
    self._cache = self._folder / "aft-serve"

  def _copy(self, *names):
    for name in names:
      (self._folder / name).parent.mkdir(parents=True, exist_ok=True)
      shutil.copy(ROOT / name, self._folder / name)

  def _git(self, folder, *arguments):
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=folder, check=True,
                   capture_output=True)

  def _start(self, script, pip_exit_code=0):
    """Starts a shell that has the functions of ./dev and SOURCED. Its pip makes one file in the folder after --target."""
    python = self._folder / "venv/bin/python"
    python.write_text('#!/bin/sh\nwhile [ "$1" != --target ]; do shift; done\n'
                      f'mkdir "$2" && : >"$2/part"\nexit {pip_exit_code}\n')
    python.chmod(0o755)
    return subprocess.Popen(
        ["bash", "-c", f"source ./dev help >help.txt; for file in {' '.join(SOURCED)}; do source $file; done; VENV=venv; "
         + script],
        cwd=self._folder, env={**os.environ, "XDG_CACHE_HOME": str(self._folder)}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

  def _run(self, script, pip_exit_code=0):
    """Returns (exit code, output)."""
    with self._start(script, pip_exit_code) as process:
      output = process.stdout.read()
    return process.returncode, output

  def test_a_failed_download_leaves_no_folder(self):
    code, output = self._run(FETCH, pip_exit_code=1)
    self.assertEqual(code, 1, output)
    self.assertIn("dev: Fetching a tool failed", output)
    self.assertFalse((self._cache / "tool-1").exists())
    code, output = self._run(f'{FETCH}; ls "$FETCHED"')
    lines = output.splitlines()  # on a slow machine a line with the time is between the two
    self.assertEqual((code, lines[0], lines[-1]), (0, "dev: Fetching a tool", "part"))

  def test_a_download_waits_for_the_same_one_of_another_clone(self):
    lock = open(self._cache / "lock", "w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    with self._start(FETCH) as process:
      with lock:
        self.assertEqual(process.stdout.readline(), "dev: Waiting for another ./dev\n")
        (self._cache / "tool-1").mkdir()
      self.assertEqual(process.stdout.read(), "")
    self.assertEqual(process.returncode, 0)
    self.assertEqual(list((self._cache / "tool-1").iterdir()), [])

  def test_the_update_of_the_package_lists_waits_for_another_one(self):
    (self._folder / "bin").mkdir()
    apt_get = self._folder / "bin/apt-get"
    # It installs only what an update has listed.
    apt_get.write_text('#!/bin/sh\ncase "$*" in\n*update) read -r error <errors && sed -i 1d errors && '
                       'echo "E: $error" && exit 100; : >lists;;\n*) [ -e lists ];;\nesac\n')
    apt_get.chmod(0o755)
    for errors, rc, pauses in ((["Could not get lock"] * 2, 0, 2), (["Could not get lock", "No space"], 1, 1)):
      (self._folder / "lists").unlink(missing_ok=True)
      (self._folder / "errors").write_text("".join(error + "\n" for error in errors))
      code, output = self._run('PATH="$PWD/bin:$PATH"; sleep() { echo pause; }; apt_get_install 0 tool')
      self.assertEqual((code, output.count("pause\n"), "E: No space\n" in output), (rc, pauses, rc == 1), output)

  def test_run_also_builds_the_client_for_a_second_terminal(self):
    _, output = self._run('build() { echo "build $*"; }; BIN=none; run_server --config=a')
    self.assertIn("build default aft-server aftctl\n", output)

  def test_a_build_for_gpus_fetches_nvcc_if_there_is_none(self):
    (self._folder / "bin").mkdir()
    build = 'PATH="$PWD/bin"; unset CUDACXX; for name in configure compile sed; do eval "$name() { :; }"; done; ' \
            'setup() { echo "setup $*"; }; build '
    for preset, option in (("bundle", "--cuda"), ("cuda", "--cuda"), ("default", "")):
      self.assertEqual(self._run(build + preset), (0, f"setup {option}\n"), preset)
    self.assertEqual(self._run(build.replace("unset CUDACXX", "export CUDACXX=nvcc") + "cuda"), (0, "setup \n"))
    (self._folder / "bin/nvcc").touch(0o755)
    self.assertEqual(self._run(build + "bundle"), (0, "setup \n"))

  def test_protos_are_compared_with_an_earlier_commit_in_clones_of_every_kind(self):
    buf = self._folder / "venv/bin/buf"
    buf.write_text("#!/bin/sh\nif [ $1 = breaking ]; then tar -xO proto/a.proto; fi\n")
    buf.chmod(0o755)
    origin = self._folder / "origin"
    (origin / "proto").mkdir(parents=True)
    self._git(origin, "init", "--initial-branch=main")
    for content, branch in (("first", "main"), ("main", "main"), ("feature", "feature")):
      self._git(origin, "checkout", "-B", branch)
      (origin / "proto/a.proto").write_text(content)
      self._git(origin, "add", "proto")
      self._git(origin, "commit", "-m", content)
    for number, (options, compared) in enumerate((
        (["--branch=feature"], "main"), (["--branch=main"], "first"),
        (["--branch=main", "--depth=1"], "dev: buf breaking: skipped, because this clone has no earlier commit\n"))):
      self._git(origin, "clone", *options, f"file://{origin}", f"../clone-{number}")
      self.assertEqual(self._run(f"VENV=$PWD/venv; cd clone-{number}; lint_protos"),
                       (0, f"dev: buf lint, buf breaking\n{compared}"), options)
    # A clone of another user. It has a shell of its own, because each ./dev makes git trust only its own folder.
    shutil.copy(ROOT / "dev", self._folder / "clone-0")
    script = "source clone-0/dev help >help.txt; VENV=$PWD/../venv; lint_protos"
    self.assertEqual(self._run(f"GIT_TEST_ASSUME_DIFFERENT_OWNER=1 bash -c '{script}'"),
                     (0, "dev: buf lint, buf breaking\nmain"))

  def test_a_folder_that_is_not_a_clone_skips_what_needs_git(self):
    checks = ("tests/lint/lint.py", "tests/docs/contributing_test.py")
    self._copy(*checks)
    (self._folder / "proto").mkdir()
    (self._folder / "venv/bin/buf").symlink_to("/bin/true")
    self.assertEqual(self._run("VENV=$PWD/venv; lint_protos"), (
        0, "dev: buf lint, buf breaking\ndev: buf breaking: skipped, because this folder is not a clone\n"))
    for check in checks:
      self.assertEqual(subprocess.run([sys.executable, "-B", self._folder / check], capture_output=True).returncode, 77)

  def test_a_file_that_was_deleted_is_no_source(self):
    self._git(self._folder, "init")
    for name in ("a.h", "deleted.h", "untracked.h", "other"):
      (self._folder / name).touch()
    self._git(self._folder, "add", "a.h", "deleted.h", "other")
    (self._folder / "deleted.h").unlink()
    self.assertEqual(self._run("sources '*.h'"), (0, "untracked.h\0a.h\0"))

  def test_every_shell_program_is_checked(self):
    self._git(self._folder, "init")
    for name, text in (("run", "#!/usr/bin/env bash\n"), ("a b/c.sh", "#!/bin/sh\n"), ("sourced.sh", "# bash\n"),
                       ("a.py", "#!/usr/bin/env python3\n#!/bin/sh\n")):
      (self._folder / name).parent.mkdir(exist_ok=True)
      (self._folder / name).write_text(text)
    code, output = self._run("shell_programs")
    self.assertEqual((code, sorted(output.split("\0"))), (0, ["", "a b/c.sh", "dev", "run", "venv/bin/python"]))

  def test_folders_are_found_whatever_CDPATH_is(self):
    self._copy("tests/gpu/run.sh")
    for name in ("clone", "other/clone", "other/tests/gpu"):
      (self._folder / name / "build").mkdir(parents=True)
    shutil.copy(ROOT / "dev", self._folder / "clone")
    environment = {name: value for name, value in os.environ.items() if name != "AFT_BUNDLE"}
    environment |= {"CDPATH": "other:.", "OUT": "out", "AFT_WORK": "work"}
    subprocess.run(["bash", "clone/dev", "clean"], cwd=self._folder, check=True, env=environment)
    self.assertEqual([(self._folder / name / "clone/build").exists() for name in ("", "other")], [False, True])
    where = subprocess.run(["bash", "-c", "source ./dev help >/dev/null; cd clone; pwd"], cwd=self._folder,
                           env=environment, text=True, capture_output=True)
    self.assertEqual(where.stdout, f"{self._folder.resolve()}/clone\n")
    run = subprocess.run(["bash", "tests/gpu/run.sh", "parity"], cwd=self._folder, env=environment, text=True,
                         capture_output=True)
    self.assertEqual(run.stderr, f"gpu: no bundle at {self._folder.resolve()}/build/gpu-bundle: run ./dev bundle first\n")

  def test_the_page_names_the_rules_for_changes_of_protos(self):
    settings = (ROOT / "proto/buf.yaml").read_text()
    rules, = re.findall(r"^breaking:\n  use:\n    - (\w+)\n  except:", settings, re.MULTILINE)
    self.assertIn(f"(rule set `{rules}`)", (ROOT / "proto/README.md").read_text())

  def test_the_quota_and_the_memory_of_a_container_limit_the_jobs(self):
    for quota, memory, kilobytes, count in (
        ("max 100000", "max", 16 << 20, 8), ("50000 100000", "max", 16 << 20, 1), ("150000 100000", "max", 16 << 20, 2),
        ("900000 100000", "max", 16 << 20, 8), ("max 100000", 3 << 30, 16 << 20, 3), ("max 100000", "max", 4 << 20, 4),
        ("max 100000", 1 << 20, 16 << 20, 1)):
      (self._folder / "cpu.max").write_text(quota + "\n")
      (self._folder / "memory.max").write_text(f"{memory}\n")
      (self._folder / "meminfo").write_text(f"MemTotal: {kilobytes} kB\nMemFree: 1 kB\n")
      self.assertEqual(self._run("nproc() { echo 8; }; count_jobs . meminfo"), (0, f"{count}\n"), (quota, memory))
    self.assertEqual(self._run("nproc() { echo 8; }; count_jobs none none"), (0, "8\n"))

  def test_a_log_has_lines_that_come_in_pieces_and_a_last_line_without_an_end(self):
    code, output = self._run("""
        count=0
        read() {  # It times out within the first line, and then reads to the end of the input.
          case $(( ++count )) in
            1) line='CMake Err'; return 142 ;;
            2) line='or: a' ;;
            3) line='error: b'; return 1 ;;
          esac
        }
        follow what log >progress
        cat log""")
    self.assertEqual((code, output), (0, "CMake Error: a\nerror: b\n"))

  def test_only_one_process_builds_a_preset(self):
    (self._folder / "build").mkdir()
    for command, log in (("configure", "configure-default"), ("compile", "build-default")):
      lock = open(self._folder / "build/.default.lock", "w")
      fcntl.flock(lock, fcntl.LOCK_EX)
      with self._start('LIBTORCH=torch; cmake() { echo "cmake $*"; }; '
                       f'{command} default; cat build/log/{log}.log') as process:
        with lock:
          self.assertEqual(process.stdout.readline(), "dev: Waiting for another ./dev\n")
        self.assertRegex(process.stdout.read(), "\ncmake (--build )?--preset default -")

  def test_arguments_that_no_command_knows_are_refused(self):
    for command in ("setup --gpu", "format --dry-run", "lint -a", "image cuad", "clean --cahce", "demo x", "coverage x",
                    "docs --check", "bundle x", "e2e x"):
      code, output = self._run(f"setup() {{ echo runs; }}; format() {{ echo runs; }}; main {command}")
      self.assertEqual((code, output), (1, f"dev: unknown argument '{command.split()[1]}'; ./dev help lists all commands\n"))
    for command in ("build --preset", "test --full x"):
      code, output = self._run(f"build() {{ echo runs; }}; main {command}")
      self.assertEqual(code, 1)
      self.assertRegex(output, f"^dev: usage: ./dev {command.split()[0]} ")

  def test_a_benchmark_that_does_not_exist_is_an_error(self):
    (self._folder / "a_bench").write_text("#!/bin/sh\necho runs\n")
    (self._folder / "a_bench").chmod(0o755)
    self.assertEqual(self._run("build() { :; }; BIN=.; bench typo"), (1, "dev: no benchmark matches 'typo'\n"))
    self.assertEqual(self._run("build() { :; }; BIN=.; bench typo a"), (0, "dev: a_bench\nruns\n"))
    self.assertEqual(self._run("build() { echo runs; }; bench --help"), (
        1, "dev: usage: ./dev bench [NAME...] [FLAG...]; docs/benchmarks.md lists the names\n"))

  def test_tools_for_a_benchmark_are_made_once_for_all_clones(self):
    program = self._folder / "tests/bench/serving/triton_tools.sh"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "$*"\n')
    program.chmod(0o755)
    tools = self._cache / "triton-tools-2.60.0"
    lock = open(self._cache / "lock", "w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    with self._start("apt_install() { :; }; build() { :; }; AFT_MODEL=m; bench triton") as process:
      with lock:
        self.assertEqual(process.stdout.readline(), "dev: Waiting for another ./dev\n")
        tools.mkdir()
        (tools / ".complete").touch()
      self.assertEqual(process.stdout.read(), f"measure {tools} build/default/bin m\n")

  def test_nvidias_tools_must_have_reached_the_server(self):
    for name in ("bin", "root/opt"):
      (self._folder / name).mkdir(parents=True)
    server = self._folder / "bin/aft-server"
    server.write_text(f"""#!{sys.executable}
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGTERM}})
sys.stderr.write(os.environ["LOG"])
ready, = (argument.partition("=")[2] for argument in sys.argv if argument.startswith("--ready_file="))
with open(ready + ".partial", "w") as file:
  file.write("one\\ntwo\\nthree\\n")
os.rename(ready + ".partial", ready)
signal.sigwait({{signal.SIGTERM}})
""")
    server.chmod(0o755)
    (self._folder / "bin/unshare").symlink_to("/bin/true")  # stands in for the tools
    for log, expected in (("event=request.done code=OK\n" * 2, 0), ("event=server.ready\n", 1),
                          ("event=request.done code=OK\nevent=request.done code=UNAVAILABLE\n", 1)):
      run = subprocess.run([ROOT / "tests/bench/serving/triton_tools.sh", "measure", "root", "bin", "m"],
                           cwd=self._folder, env={**os.environ, "PATH": f"bin:{os.environ['PATH']}", "LOG": log},
                           capture_output=True)
      self.assertEqual(run.returncode, expected, (log, run.stderr))

  def test_each_benchmark_of_several_gets_what_it_needs(self):
    stubs = "build() { :; }; exec() { exit; }; fetch_envoy() { echo envoy; }; fetch_aiperf() { echo aiperf; }; "
    self.assertEqual(self._run(stubs + "bench streams survival aiperf"), (0, "envoy\naiperf\n"))
    self.assertEqual(self._run(stubs + "bench streams rpc"), (0, ""))

  def test_tests_of_the_edge_that_are_named_run_with_an_envoy(self):
    for count, envoy, expected in ((1, "", "envoy\n"), (0, "", ""), (1, "mine", "")):
      stubs = f"AFT_ENVOY={envoy}; build() {{ :; }}; fetch_tools() {{ :; }}; fetch_envoy() {{ echo envoy; }}; " \
              f"run_tests() {{ :; }}; ctest() {{ [[ $* != *' -L edge -R a' ]] || echo Total Tests: {count}; }}; "
      self.assertEqual(self._run(stubs + "test_command a"), (0, expected), (count, envoy))

  def test_a_hunt_names_only_its_own_failures(self):
    failures = self._folder / "build/default/Testing/Temporary/LastTestsFailed.log"
    failures.parent.mkdir(parents=True)
    failures.write_text("1:old\n")
    code, output = self._run("ctest() { return 8; }; failed=''; hunt 1 -R x")
    self.assertEqual((code, "old" in output), (1, False))
    self.assertTrue(output.endswith("\ndev: no random test matches\n"), output)
    code, output = self._run(f"ctest() {{ echo 2:new >{failures}; return 8; }}; failed=''; hunt 1")
    self.assertRegex(output, r"\ndev: Repeat with: AFT_TEST_SEED=\d+ ./dev test new\n$")

  def test_programs_that_a_minimal_debian_lacks_are_installed(self):
    stubs = 'apt_install() { echo " $* "; exit; }; setup() { exit; }; build() { exit; }; '
    for command, package in (("bundle", "xz-utils"), ("build_arm64", "uidmap")):
      self.assertIn(f" {package} ", self._run(stubs + command)[1])

  def test_either_chromium_runs_the_tests_of_the_pages(self):
    for found, missing in (("chromium", False), ("chromium-headless-shell", False), ("zsh", True)):
      _, output = self._run(f'fetch() {{ FETCHED=x; }}; once() {{ :; }}; command() {{ [[ $2 == {found} ]]; }}; fetch_tools')
      self.assertEqual("No Chromium" in output, missing, found)

  def test_pip_installs_nothing_for_the_user(self):
    self.assertEqual(self._run("echo $PIP_USER"), (0, "0\n"))

  def test_an_image_can_read_what_it_copies(self):
    (self._folder / "CMakeLists.txt").write_text("project(a VERSION 1.2)\n")
    for name in ("deploy/config/a.textproto", "model/zoo/a/config.json"):
      (self._folder / name).parent.mkdir(parents=True)
      (self._folder / name).touch(0o600)
    for name in ("deploy/config", "model/zoo/a", "model/zoo"):
      (self._folder / name).chmod(0o700)
    code, output = self._run("""
        setup() { :; }; cp() { :; }; choose_engine() { ENGINE=(docker) BUILD=(); }
        step() {
          [[ $1 == image ]] || return 0
          find deploy/config model/zoo ! -perm -a+r -o -type d ! -perm -a+x
          exit
        }
        image""")
    self.assertEqual((code, output), (0, ""))

  def test_a_base_image_that_lacks_files_is_not_kept(self):
    whole = 'mkdir -p "$3"/{etc/{apt/{apt.conf.d,sources.list.d},dpkg/dpkg.cfg.d},usr/share/doc}'
    for debootstrap, engine, expected in (
        (f"{whole}; false", "cat >image", (1, False)), (f"{whole}; rmdir $3/etc/dpkg/*", "cat >image", (1, False)),
        (whole, "cat >image; false", (1, True)), (whole, "cat >image", (0, True))):
      (self._folder / "image").unlink(missing_ok=True)
      code, output = self._run(f"debootstrap() {{ {debootstrap}; }}; engine() {{ {engine}; }}; ENGINE=(engine); "
                               "step image-base what make_base_image")
      self.assertEqual((code, (self._folder / "image").exists()), expected, output)

  def test_libtorch_may_be_in_a_folder_with_a_blank(self):
    torch = self._folder / "a cache/torch"
    for name in ("include/ATen/core/Tensor.h", "lib/libc10.so", "lib/libtorch_cpu.so"):
      (torch / name).parent.mkdir(parents=True, exist_ok=True)
      (torch / name).touch()
    (self._folder / "CMakeLists.txt").write_text(
        f'cmake_minimum_required(VERSION 3.25)\nproject(stub LANGUAGES CXX)\nset(CMAKE_EXPORT_COMPILE_COMMANDS ON)\n'
        f'list(APPEND CMAKE_MODULE_PATH "{ROOT}/cmake")\nfind_package(LibTorch REQUIRED)\n'
        'add_library(stub OBJECT stub.cc)\ntarget_link_libraries(stub LibTorch::cpu)\n')
    (self._folder / "stub.cc").touch()
    subprocess.run(["cmake", "-G", "Ninja", "-S", ".", "-B", "out", f"-DLIBTORCH_ROOT={torch}"], cwd=self._folder,
                   check=True, capture_output=True)
    command, = json.loads((self._folder / "out/compile_commands.json").read_text())
    words = shlex.split(command["command"])
    folders = [word for before, word in zip(words, words[1:]) if before == "-idirafter"]
    self.assertEqual(folders, [f"{torch}/include", f"{torch}/include/torch/csrc/api/include"])


if __name__ == "__main__":
  unittest.main()
