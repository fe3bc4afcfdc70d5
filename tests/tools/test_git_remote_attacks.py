"""A hostile repository tries to run a program or to get credentials when the user allows a push or a fetch.

Each attempt has a control: plain `git` on the host does start the program, or does send the credentials.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec import Struct

from tests.kit.git_servers import PASSWORD, USER, GitHome, RemoteCaller, serve_git, serve_web
from treadle.errors import TreadleError


class Target(Struct):
    """A clone that somebody else prepared, its server, and the file that the canary program writes."""

    home: GitHome
    work: Path
    served: Path
    url: str
    canary: Path
    mark: Path

    def configure(self, *words: str) -> None:
        self.home.git("config", *words, at=self.work)

    def was_started(self) -> bool:
        started = self.mark.exists()
        self.mark.unlink(missing_ok=True)
        return started


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
    home = GitHome(tmp_path / "home")
    monkeypatch.setenv("HOME", str(home.folder))
    monkeypatch.setenv("TREADLE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.delenv("GIT_SSH_COMMAND", raising=False)
    served, work, mark = tmp_path / "served", tmp_path / "work", tmp_path / "started"
    home.git("init", "-q", "--bare", str(served / "app.git"), at=tmp_path)
    home.git("init", "-q", str(work), at=tmp_path)
    home.commit(work, "README")
    home.git("push", "-q", str(served / "app.git"), "main", at=work)
    home.commit(work, "new")
    canary = home.write_program(work / "canary", f"echo started > {mark}; exit 1")
    with serve_git(served) as port:
        url = f"git://127.0.0.1:{port}/app.git"
        home.git("remote", "add", "origin", url, at=work)
        home.git("fetch", "-q", at=work)
        yield Target(home, work, served, url, canary, mark)


def set_ssh_command(target: Target) -> None:
    target.configure("core.sshCommand", str(target.canary))
    target.configure("remote.origin.url", "git@127.0.0.1:app.git")


def set_credential_helper(target: Target) -> None:
    target.configure("credential.helper", f"!{target.canary}")
    target.configure("remote.origin.url", "WEB")


def set_askpass(target: Target) -> None:
    target.configure("core.askPass", str(target.canary))
    target.configure("remote.origin.url", "WEB")


def set_receive_pack(target: Target) -> None:
    target.configure("remote.origin.url", str(target.served / "app.git"))
    target.configure("remote.origin.receivepack", str(target.canary))


def set_upload_pack(target: Target) -> None:
    target.configure("remote.origin.url", str(target.served / "app.git"))
    target.configure("remote.origin.uploadpack", str(target.canary))


def set_hooks_path(target: Target) -> None:
    target.home.write_program(target.work / "hooks/pre-push", str(target.canary))
    target.configure("core.hooksPath", str(target.work / "hooks"))


def plant_hook(target: Target) -> None:
    target.home.write_program(target.work / ".git/hooks/pre-push", str(target.canary))


def plant_transaction_hook(target: Target) -> None:
    target.home.write_program(target.work / ".git/hooks/reference-transaction", str(target.canary))


def set_include(target: Target) -> None:
    (target.work / "more").write_text(f"[core]\n\tsshCommand = {target.canary}\n")
    target.configure("include.path", "../more")
    target.configure("remote.origin.url", "git@127.0.0.1:app.git")


def set_ext_url(target: Target) -> None:
    target.configure("protocol.ext.allow", "always")
    target.configure("remote.origin.url", f"ext::{target.canary} %S")


def set_instead_of(target: Target) -> None:
    target.configure("protocol.ext.allow", "always")
    target.configure(f"url.ext::{target.canary} #.insteadOf", target.url)


def set_vcs(target: Target) -> None:
    target.home.write_program(target.work / "bin/git-remote-trap", str(target.canary))
    target.configure("remote.origin.vcs", "trap")


def set_git_proxy(target: Target) -> None:
    target.configure("core.gitProxy", str(target.canary))


def set_alternate_command(target: Target) -> None:
    target.home.git("clone", "-q", "--bare", str(target.work), str(target.work / "other.git"), at=target.work)
    (target.work / ".git/objects/info/alternates").write_text(f"{target.work}/other.git/objects\n")
    target.configure("core.alternateRefsCommand", str(target.canary))


def plant_programs_on_path(target: Target) -> None:
    for name in ("git", "ssh", "git-remote-https", "sh"):
        target.home.write_program(target.work / "bin" / name, str(target.canary))


def set_gpg_program(target: Target) -> None:
    target.configure("push.gpgSign", "if-asked")
    target.home.git("config", "receive.certNonceSeed", "seed", at=target.served / "app.git")
    target.configure("gpg.program", str(target.canary))
    target.configure("user.signingKey", "key")


ATTEMPTS: list[tuple[Callable[[Target], None], str]] = [
    (set_ssh_command, "push"),
    (set_ssh_command, "fetch"),
    (set_credential_helper, "fetch"),
    (set_askpass, "fetch"),
    (set_receive_pack, "push"),
    (set_upload_pack, "fetch"),
    (set_hooks_path, "push"),
    (plant_hook, "push"),
    (plant_transaction_hook, "fetch"),
    (set_include, "fetch"),
    (set_ext_url, "fetch"),
    (set_instead_of, "push"),
    (set_vcs, "fetch"),
    (set_git_proxy, "push"),
    (set_alternate_command, "fetch"),
    (plant_programs_on_path, "fetch"),
    (set_gpg_program, "push"),
]


@pytest.mark.parametrize(("prepare", "action"), ATTEMPTS, ids=lambda value: getattr(value, "__name__", value))
async def test_no_program_of_a_repository_is_started(
    target: Target, monkeypatch: pytest.MonkeyPatch, prepare: Callable[[Target], None], action: str
) -> None:
    other, url = target.home.folder / "other", str(target.served / "app.git")
    target.home.git("clone", "-q", url, str(other), at=target.home.folder)
    target.home.commit(other, "theirs")
    target.home.git("push", "-q", url, "HEAD:theirs", at=other)
    with serve_web(target.served) as (web, _):
        prepare(target)
        if "WEB" in target.home.git("config", "remote.origin.url", at=target.work):
            target.configure("remote.origin.url", f"http://127.0.0.1:{web}/app.git")
        path = f"{target.work}/bin:{os.environ['PATH']}"
        monkeypatch.setenv("PATH", path)
        assert not target.was_started()
        try:
            result = (await RemoteCaller(target.work).run(action)).text
        except TreadleError as error:
            result = str(error)
        assert not target.was_started(), result
        if action == "push":
            target.home.commit(target.work, "control")
        else:
            target.home.git("push", "-q", url, "HEAD:control", at=other)
        assert not target.was_started()
        words = ("push", "origin", "main") if action == "push" else ("fetch", "origin")
        target.home.git(*words, at=target.work, check=False, PATH=path)
        assert target.was_started(), "the attempt works without protection"


async def test_the_users_credentials_go_to_the_host_that_was_shown_only(target: Target, tmp_path: Path) -> None:
    home = target.home
    helper = home.write_program(home.folder / "bin/keys", f"echo username={USER}; echo password={PASSWORD}")
    home.configure(f'[credential]\n\thelper = "{helper}"\n')
    with serve_web(target.served) as (good, _), serve_web(target.served) as (evil, stolen):
        target.configure("remote.origin.url", f"http://127.0.0.1:{good}/app.git")
        target.configure(f"url.http://127.0.0.1:{evil}/.insteadOf", f"http://127.0.0.1:{good}/")
        caller = RemoteCaller(target.work)
        shown = await caller.bind("fetch")
        assert shown["host"] == f"127.0.0.1:{good}"
        assert (await caller.run_bound()).ok and not stolen
        home.git("fetch", "origin", at=target.work)
        assert any(stolen), "git alone sends them to the other host"
        stolen.clear()
        home.git("config", "--remove-section", f"url.http://127.0.0.1:{evil}/", at=target.work)
        target.configure("http.proxy", f"http://127.0.0.1:{evil}")
        target.configure("remote.origin.proxy", f"http://127.0.0.1:{evil}")
        assert (await caller.run("fetch")).ok and not stolen
        home.git("fetch", "origin", at=target.work, check=False)
        assert stolen, "git alone asks the proxy"


@pytest.mark.parametrize("name", [".gitconfig", ".ssh", ".config/git/config"])
async def test_settings_that_commands_can_change_are_not_used(target: Target, name: str) -> None:
    place = target.home.folder / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    (target.work / "mine").write_text(f"[core]\n\tgitProxy = {target.canary}\n")
    place.symlink_to(target.work / "mine")
    with pytest.raises(TreadleError, match="commands can change what git does"):
        await RemoteCaller(target.work).run("fetch")
    assert not target.was_started()


@pytest.mark.parametrize(
    ("setting", "variable"),
    [
        ("[include]\n\tpath = {work}/mine\n", ""),
        ('[includeIf "gitdir:{work}/"]\n\tpath = {home}/more\n', ""),
        ("[core]\n\tgitProxy = {work}/run\n", ""),
        ("[credential]\n\thelper = !sh -c '{work}/run x'\n", ""),
        ('[credential "https://git.example.org"]\n\thelper = ~/../work/run\n', ""),
        ("", "env X=1 {work}/run"),
    ],
)
async def test_a_program_that_commands_can_change_is_not_run_for_the_user(
    target: Target, monkeypatch: pytest.MonkeyPatch, setting: str, variable: str
) -> None:
    home, work = target.home, target.work
    home.write_program(work / "run", str(target.canary))
    for file in (work / "mine", home.folder / "more"):
        file.write_text(f"[core]\n\tgitProxy = {work}/run\n")
    home.configure(setting.format(work=work, home=home.folder))
    if variable:
        target.configure("remote.origin.url", "git@127.0.0.1:app.git")
        monkeypatch.setenv("GIT_SSH_COMMAND", variable.format(work=work))
    with pytest.raises(TreadleError, match="commands can change what git does"):
        await RemoteCaller(work).run("fetch")
    assert not target.was_started()


async def test_programs_of_the_workspace_are_passed_over(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    plant_programs_on_path(target)
    (target.home.folder / "link").symlink_to(target.work / "bin")
    monkeypatch.setenv("PATH", f"bin:{target.work}/bin:{target.home.folder}/link:{os.environ['PATH']}")
    result = await RemoteCaller(target.work).run("push")
    assert result.ok and not target.was_started(), result.text


async def test_variables_that_name_files_of_the_workspace_are_not_passed_on(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    (target.work / "git").mkdir()
    (target.work / "git/config").write_text(f"[core]\n\tgitProxy = {target.canary}\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(target.work))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(target.work / "git/config"))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "core.gitProxy")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", str(target.canary))
    monkeypatch.setenv("GIT_DIR", str(target.work / ".git"))
    monkeypatch.setenv("GIT_PROXY_COMMAND", str(target.canary))
    monkeypatch.setenv("SSH_ASKPASS", str(target.canary))
    result = await RemoteCaller(target.work).run("push")
    assert result.ok, result.text
    assert not target.was_started()
