"""The repositories in which attempts through git begin, and what an attempt is."""

from collections.abc import Callable

from msgspec import Struct

from tests.kit.git_places import GitPlace

Prepare = Callable[[GitPlace], None]
SECRET = "the-secret"


def plain(place: GitPlace) -> None:
    place.make_layout("plain")


def submodule(place: GitPlace) -> None:
    place.make_layout("submodule")


def without_checkout(place: GitPlace) -> None:
    place.make_layout("submodule")
    place.host("git submodule deinit -f libs/sub")


def no_repository(place: GitPlace) -> None:
    place.workspace.mkdir()


def other(place: GitPlace) -> None:
    """Another repository of the user, with a secret in its history."""
    plain(place)
    folder = place.make_repository(place.folder / "other")
    (folder / "key").write_text(SECRET)
    place.host("git add key && git commit -qm key && git worktree add -q ../tree", folder)


def link_to_other(place: GitPlace) -> None:
    other(place)
    place.host(f"mv .git old; echo 'gitdir: {place.folder}/other/.git' > .git")


def link_to_tree(place: GitPlace) -> None:
    other(place)
    place.host(f"mv .git old; echo 'gitdir: {place.folder}/other/.git/worktrees/tree' > .git")


def nested_link_to_other(place: GitPlace) -> None:
    other(place)
    place.host(f"mkdir sub; echo 'gitdir: {place.folder}/other/.git' > sub/.git")


def linked_keys(place: GitPlace) -> None:
    plain(place)
    (place.home / ".ssh").mkdir()
    (place.home / ".ssh/id_rsa").write_text(SECRET)
    place.host(f"mv .git old; ln -s {place.home}/.ssh .git")


def linked_objects(place: GitPlace) -> None:
    plain(place)
    (place.home / ".ssh").mkdir()
    (place.home / ".ssh/id_rsa").write_text(SECRET)
    place.host(f"mv .git/objects old; ln -s {place.home}/.ssh .git/objects")


def borrowed_keys(place: GitPlace) -> None:
    plain(place)
    (place.home / ".ssh/objects").mkdir(parents=True)
    (place.home / ".ssh/objects/id_rsa").write_text(SECRET)
    place.host(f"echo {place.home}/.ssh/objects > .git/objects/info/alternates")


def run_in_plain(script: str) -> Prepare:
    """Prepare a plain repository in which the user has run a script."""

    def prepare(place: GitPlace) -> None:
        plain(place)
        place.host(script)

    return prepare


hard_linked = run_in_plain("git clone -q . ../linked")
own_hooks = run_in_plain("git config core.hooksPath tools/hooks; mkdir -p tools/hooks; touch tools/hooks/x tools/y")
missing_hooks = run_in_plain("git config core.hooksPath tools/hooks")
linked_hooks = run_in_plain("git config core.hooksPath hooks; mkdir real; ln -s real hooks")
included = run_in_plain(
    "git config include.path ../.gitconfig; git config -f .gitconfig core.hooksPath h; mkdir h; touch h/x"
)
included_missing = run_in_plain("git config includeIf.gitdir:/.path ../conf/git")
hooks_of_the_user = run_in_plain("git config --global core.hooksPath hooks; mkdir hooks; touch hooks/x")
settings_of_the_user = run_in_plain("mv ~/.gitconfig gitconfig; ln -s $PWD/gitconfig ~/.gitconfig")
tokens = run_in_plain(
    f"git config http.extraheader 'Authorization: {SECRET}'; git config credential.helper '!echo {SECRET}'; "
    f"git remote add origin https://me:{SECRET}@example.org/x; git remote add two 'https://example.org/?t={SECRET}'"
)


def tokens_of_a_split_index(place: GitPlace) -> None:
    """A repository that gets no private copy."""
    tokens(place)
    place.host("git update-index --split-index")


def tokens_of_many(place: GitPlace) -> None:
    """More repositories than get a private copy."""
    place.workspace.mkdir()
    place.host(f"for i in $(seq 10 50); do git init -q r$i; git -C r$i config http.extraheader {SECRET}; done")


def tokens_of_submodules(place: GitPlace) -> None:
    submodule(place)
    place.host(f"git config http.extraheader {SECRET}; git update-index --split-index", place.workspace / "libs/sub")
    place.host("git update-index --split-index")


def hooks_of_a_branch(place: GitPlace) -> None:
    plain(place)
    place.host("git config --global includeIf.onbranch:dev.path dev.inc; git config -f ~/dev.inc core.hooksPath hooks")


def hooks_of_a_place(place: GitPlace) -> None:
    plain(place)
    place.host("git config --global includeIf.gitdir:sub/.path more.inc; git config -f ~/more.inc core.hooksPath hooks")


def hooks_of_the_folder_above(place: GitPlace) -> None:
    top = place.make_repository(place.folder / "top")
    place.host("git config core.hooksPath inner/hooks; mkdir -p inner/hooks; touch inner/hooks/x inner/file0", top)
    place.host("git add . && git commit -qm inner", top)
    place.workspace = top / "inner"


class Attempt(Struct, frozen=True):
    """A way out: what the command does, and what the user does afterwards besides the usual."""

    name: str
    code: str
    prepare: Prepare = plain
    then: str = ""
