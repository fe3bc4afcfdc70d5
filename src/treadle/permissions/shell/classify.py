"""How dangerous a shell command is, by what is known of its parts. It allows nothing: the sandbox is what holds.

Safe is only what is known to read and nothing else; destructive is what is known to hurt, or reaches out of the
workspace to write; everything between is caution.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from treadle.events import Safety
from treadle.permissions.paths import is_instruction_path, is_protected_path
from treadle.permissions.policy import make_printable
from treadle.permissions.shell.parse import STANDARD_DEVICES, CommandPart, ShellWord, find_exec_commands

DISKS = "it works on whole disks"
UNCOMMITTED = "it throws away work that was not committed"
HISTORY = "it throws away history"
PUBLISHES = "it publishes, or changes what others see"
RUNS = "it lets git run another program"
PROTECTED = "it changes what runs at the next git or treadle command"

# Commands that only read, and what would make them do more: letters, long options (which may be cut short), words.
_READERS: tuple[tuple[str, str, str, str], ...] = (
    (
        r"ls|cat|head|tail|wc|nl|cut|tr|comm|diff|cmp|stat|du|df|pwd|echo|true|false|test|\[|:|basename|dirname|realpath",
        "",
        "",
        "",
    ),
    (
        r"readlink|which|type|whoami|id|uname|[ef]?grep|md5sum|sha\d+sum|cksum|od|hexdump|strings|seq|expr|sleep",
        "",
        "",
        "",
    ),
    (r"column|fold|tac|rev|jq|xargs|cd", "", "", ""),
    (r"printf", "", "", r"-v.*"),
    (r"command", "p", "", ""),
    (r"date", "", "set", r"-(?![Idfr])[a-zA-Z]*s.*|\d{8,}.*"),
    (r"sort", "oT", "output compress-program temporary-directory", ""),
    (r"tree", "oR", "output", ""),
    (r"file", "C", "compile", ""),
    (r"uniq", "", "", r"[^-].*"),
    (r"rg", "z", "pre hostname-bin search-zip", ""),
    (r"find", "", "", r"-(exec|execdir|ok|okdir|delete|fprint.*|fls)"),
    (r"fd", "xX", "exec exec-batch", ""),
    (r"git (status|ls-files|ls-tree|rev-parse|describe|merge-base|cherry|name-rev)", "", "", ""),
    (r"git (log|shortlog|rev-list|diff|show|blame)", "", "output ext-diff textconv", ""),
    (
        r"git branch",
        "dDmMcCfu",
        "delete move copy force set-upstream-to unset-upstream edit-description",
        r"[^-].*",
    ),
    (r"git tag", "adfsumF", "annotate delete force sign message file edit local-user", r"[^-].*"),
    (r"git remote", "", "", r"(?!-v$|--verbose$|show$|get-url$).*"),
    (r"git grep", "O", "open-files-in-pager", ""),
)
_GIT_VALUES = ("-C", "-c", "--git-dir", "--work-tree", "--namespace", "--config-env", "--attr-source")
_GIT_LONG = (
    "force force-with-lease mirror delete prune hard discard-changes global system "
    "upload-pack receive-pack exec extcmd open-files-in-pager config-env exec-path"
)
_GIT_PROGRAMS = (
    r"(?i:alias\.|include|core\.(pager|editor|hookspath|fsmonitor|sshcommand|gitproxy|askpass)|pager\.|sequence\.editor"
    r"|credential\.|(filter|diff|merge|difftool|mergetool|gpg|remote|uploadpack|protocol)\.\S*"
    r"(clean|smudge|process|command|textconv|driver|cmd|path|program|uploadpack|receivepack|vcs|hook|allow))"
)
# Settings that name no program: any other may.
_GIT_RUNS = re.compile(
    r"(^| )((?-i:-c) "  # -C is a folder
    r"(?!(user|color|advice|i18n|column)\.|core\.(quotepath|autocrlf|abbrev)=|init\.defaultbranch=|safe\.)"
    r"|--config-env|--exec-path=)",
    re.IGNORECASE,
)
_GIT_OPTION = re.compile(r"--no-pager|-P|--no-optional-locks|--literal-pathspecs|--version")

# Commands that hurt: the name, the words after it (joined by blanks), and the reason.
_DANGERS: tuple[tuple[str, str, str], ...] = (
    (r"sudo|su|doas|pkexec|run0|runuser", "", "it takes the rights of another user"),
    (r"mkfs.*|[sc]?fdisk|parted|wipefs|mkswap|cryptsetup|losetup|u?mount|[lv][vg]remove|blkdiscard", "", DISKS),
    (r"dd", r".*\bof=/dev/(?!null\b)", DISKS),
    (r"shutdown|reboot|halt|poweroff|init|telinit", "", "it stops the machine"),
    (r"user(add|del|mod)|group(add|del|mod)|passwd|chpasswd|visudo", "", "it changes user accounts"),
    (r"ip6?tables|nft|ufw|firewall-cmd|modprobe|insmod|rmmod|kexec", "", "it changes the firewall or the kernel"),
    (r"chroot|nsenter|unshare", "", "it leaves or changes the walls around it"),
    (r"at|batch", "", "it runs something later, unasked"),
    (r"crontab", r"(?!-l$)", "it runs something later, unasked"),
    (r"shred", "", "it destroys what it is given"),
    (r"ssh|scp|sftp|mosh|telnet", "", "it acts on another machine"),
    (r"killall|pkill", "", "it ends processes that may be others'"),
    (r"kill", r"(?!(-0|-l|-L|--list)\b)(?!.*(%|\$!)).+", "it ends processes that may be others'"),
    (r"systemctl", r"(?!(status|show|list-\S+|is-\S+|cat)\b)", "it changes the system's services"),
    (r"service", r"(?!.*status$)", "it changes the system's services"),
    (r"sysctl", r".*(-w|=|-p)", "it changes the kernel's settings"),
    (
        r"chmod",
        r"(.* )?([-+=,ugoarwxXt]*[+=][rwxXt]*s|0*[2467]\d{3}( |$))",
        "it lets others act with this user's rights",
    ),
    (
        r"git",
        r"push\b.* (--force|-[a-zA-Z]*[fd]|--mirror|--delete|--prune|\+|:)",
        "it overwrites or deletes what others have",
    ),
    (r"git", r"reset\b.* --(hard|merge)|worktree remove\b.* (-f|--force)|clean\b.* (-[a-zA-Z]*f|--force)", UNCOMMITTED),
    (
        r"git",
        r"checkout\b.* (-f\b|--force|--( |$)|\.)|switch\b.* (-f|--discard|--force)"
        r"|restore (?!.*(--staged|-S\b))|restore\b.* (--worktree|-S?W)",
        UNCOMMITTED,
    ),
    (r"git", r"branch\b.* (-[a-zA-Z]*[Df]|.*--force)|stash (drop|clear)|reflog (expire|delete)", HISTORY),
    (r"git", r"gc\b.* --prune|filter-branch|update-ref\b.* -d", HISTORY),
    (r"git", r"config\b.* --(global|system)", "it changes git for every project"),
    (r"git", rf"config\b(?! (get|list|-l|--get\S*|--list)\b).* ({_GIT_PROGRAMS})\S* \S", PROTECTED),
    (r"git", r".* --(upload-pack|receive-pack|exec|extcmd|open-files-in-pager)\b|grep\b.* -\w*O", RUNS),
    (r"git", r"submodule\b.* foreach\b|bisect run\b|(rebase|difftool)\b.* -\w*x|clone\b.* (-c|--config)\b", RUNS),
    (
        r"docker|podman",
        r".*(--privileged|--pid[= ]host|(-v|--volume)[= ]?/:|docker\.sock)",
        "it reaches the whole machine",
    ),
    (r"docker|podman", r".*\bprune\b|volume rm\b", "it deletes data of other programs"),
    (r"docker|podman|helm|gem", r"(.* )?push\b", PUBLISHES),
    (r"npm|pnpm|yarn|cargo|poetry|uv|flit|hatch|bun|vsce|twine", r"(.* )?(publish|unpublish|upload|yank)\b", PUBLISHES),
    (r"python[\d.]*", r"-m twine upload\b", PUBLISHES),
    (r"mvn|gradle", r"(.* )?(deploy|publish)\b", PUBLISHES),
    (r"gh", r"(repo|release|secret|gist) (delete|create|edit|set)\b", PUBLISHES),
    (
        r"kubectl|terraform|tofu|pulumi",
        r"(.* )?(delete|apply|drain|replace|destroy|up)\b",
        "it changes what runs elsewhere",
    ),
)

# Commands that write to, or delete, the paths they are given.
_WRITERS = re.compile(
    r"rm|rmdir|unlink|mv|cp|install|rsync|tee|touch|mkdir|ln|truncate|chmod|chown|chgrp|dd|mkfifo|mknod|patch|unzip|tar"
)
_FILLERS = re.compile(r"cp|tee|dd|tar|touch")
_COPIERS = re.compile(r"cp|install|rsync|ln")
_EDITORS = re.compile(r"sed|perl|ruby")
_OUTPUTS = re.compile(r"curl|wget|aria2c|sort|tree|git|gcc|g\+\+|cc|clang|ld|go|rustc|pandoc|openssl|find")
_OUTPUT = re.compile(r"(--output(-[a-z]+)?|--directory-prefix|-out|-[a-zA-Z]*[oOP]|-fprint.*|-fls)=?(.*)", re.DOTALL)
_ANCHORED = re.compile(rf"^{_OUTPUT.pattern}$", re.DOTALL)
_DOWNLOADERS = frozenset(("curl", "wget", "aria2c"))
_INTERPRETERS = re.compile(r"python[\d.]*|perl|ruby|node|php|bun|deno|lua[\d.]*|tclsh|Rscript|julia")
_RUNNERS = re.compile(rf"{_INTERPRETERS.pattern}|(ba|da|a|z|k)?sh|source|\.")
_SECRET = re.compile(
    r"(^|/)(\.env(rc)?(\.(?!example|sample|template|dist|defaults)[^/]*)?|\.(ssh|aws|gnupg|kube|docker|azure|gcloud)(/.*)?"
    r"|\.password-store(/.*)?|\.(netrc|pgpass|pypirc|git-credentials)|id_(rsa|dsa|ecdsa|ed25519)|etc/g?shadow|proc/[^/]+/environ)$",
    re.IGNORECASE,
)
_SECRETS = (
    ".env",
    ".envrc",
    ".env.local",
    ".ssh",
    ".aws",
    ".netrc",
    ".pgpass",
    ".pypirc",
    ".git-credentials",
    "id_rsa",
    "id_ed25519",
)
_HARMLESS_PLACES = ("/dev/fd", *STANDARD_DEVICES)
_OWN_PLACES = ("/tmp", "/var/tmp")
"""Where each command in the sandbox has something of its own."""


def classify_command(
    parts: Sequence[CommandPart], workspace: str, folder: str = "", *, walls: bool = True
) -> tuple[Safety, str]:
    """The class of a command that starts in a folder of the workspace, and the reason when it is destructive.

    Without `walls` around it what is in /tmp is others' too.
    """
    judge = _Judge(parts, (workspace, *_HARMLESS_PLACES, *(_OWN_PLACES if walls else ())), folder)
    for part in parts:
        why = judge.danger(part)
        if why:
            return "destructive", f"{why} ({make_printable(part.text)})"
    return "safe" if parts and all(map(judge.harmless, parts)) else "caution", ""


class _Judge:
    """Looks at one part at a time, knowing the others."""

    def __init__(self, parts: Sequence[CommandPart], own: Sequence[str], folder: str) -> None:
        self._places = tuple(map(posixpath.normpath, own))
        self._workspace = self._places[0]
        self._downloads = any(part.name in _DOWNLOADERS for part in parts)
        self._downloaded = {
            posixpath.basename(place)
            for part in parts
            if self._downloads and (part.name in _DOWNLOADERS or part.kind == "redirect" or part.name == "tee")
            for word in part.words[1:]
            for place in [_ANCHORED.sub(r"\3", word.text)]
            if place and not place.startswith("-")
        }
        assigned = [part.name.partition("=")[::2] for part in parts if part.kind == "assignment"]
        others = {name for name, value in assigned if value != "$!"}
        self._started = {f"${name}" for name, _ in assigned if name not in others}
        # After leaving the workspace no relative path is known to be in it.
        self._elsewhere, self._base = False, ""
        self._elsewhere = any(part.kind == "command" and self._leaves(part) for part in parts)
        # Where it starts is where its paths are from, unless it goes elsewhere before it uses them.
        self._base = "" if any(map(_moves, parts)) else folder
        # What is written in such a folder need not name it.
        entered = (word.text for part in parts if part.name in ("cd", "pushd") for word in part.words[1:])
        places = (posixpath.join(folder, place, "") for place in ("", *entered))
        self._inside = next((place for place in places if _instructs(ShellWord(f"{place}x"))), "")

    def danger(self, part: CommandPart) -> str:
        """Why this part must not run unasked; empty when nothing is known against it."""
        if self._downloads and self._runs_what_comes(part):
            return "it runs what it downloads, unseen"
        if part.kind in ("unknown", "assignment"):
            return _known(part) if part.kind == "unknown" else ""
        opens = part.name not in ("echo", "printf", "test")
        if opens and any(_may_be_secret(word, part.name) for word in part.words[1:]):
            return "it touches what may be secret"
        if part.kind == "redirect":
            if part.name != ">":
                return ""
            return "it writes outside the workspace" if self._outside(part.words[1]) else self._instructs(part.words[1])
        if part.name == "find" and self._found_outside(part):
            return "it runs a command on files outside the workspace"
        return (not self._ends_own(part) and _known(part)) or self._writes_outside(part)

    def harmless(self, part: CommandPart) -> bool:
        """Whether this part is known to read only, and only in the workspace."""
        reads = _reads(part) if part.kind == "command" else part.kind == "redirect" and part.name == "<"
        return reads and not self._elsewhere and not any(self._outside(word) for word in part.words[1:])

    def _leaves(self, part: CommandPart) -> bool:
        if part.name == "env":
            return any(re.match(r"-[a-zA-Z]*C|--chdir", word.text) for word in part.words)
        if part.name not in ("cd", "pushd", "popd"):
            return False
        places = [word for word in part.words[1:] if not word.text.startswith("-")]
        return not places or any(self._outside(word, loose=True) for word in places)

    def _runs_what_comes(self, part: CommandPart) -> bool:
        if part.kind != "command":
            return part.kind == "unknown"
        words = part.words[1:]
        if _RUNNERS.fullmatch(part.name) and any(
            re.search(r"[<$]\(|`", word.text) or posixpath.basename(word.text) in self._downloaded for word in words
        ):
            return True
        told = [word.text for word in words]
        reads_code = len(told) < 2 or "-" in told or all(one.startswith("-") for one in told)
        fed = part.reads_pipe and bool(_INTERPRETERS.fullmatch(part.name)) and reads_code
        return fed or ("/" in part.name and posixpath.basename(part.name) in self._downloaded)

    def _ends_own(self, part: CommandPart) -> bool:
        """Whether it ends only what this very command has started: `make & x=$!; kill $x`."""
        ended = [word.text.strip('"') for word in part.words[1:] if not word.text.startswith("-")]
        return part.name == "kill" and bool(ended) and self._started.issuperset(ended)

    def _found_outside(self, part: CommandPart) -> bool:
        runs = [CommandPart("command", words) for words in find_exec_commands(part.words) if words]
        return any(not _reads(one) for one in runs) and any(map(self._outside, part.words[1:]))

    def _writes_outside(self, part: CommandPart) -> str:
        name, words = posixpath.basename(part.name), part.words[1:]
        flags = " ".join(word.text for word in words if word.text.startswith("-"))
        deletes = name == "rm" or (name == "find" and "-delete" in flags)
        edits = _EDITORS.fullmatch(name) and re.search(r"(^| )(-[a-zA-Z]*i|--in-place)", flags)
        if not (deletes or edits or _WRITERS.fullmatch(name)):
            places = list(_outputs(name, words)) if _OUTPUTS.fullmatch(name) else []
            if any(self._outside(place) for place in places):
                return "it writes outside the workspace"
            return next((why for place in places if (why := self._instructs(place))), "")
        if _COPIERS.fullmatch(name) and not re.search(r"(^| )(-t|--target)", flags):
            words = words[-1:]
        for word in words:
            path = re.sub(r"^((of|--[a-z-]+)=|-[tTC](?=[/~.]))", "", word.text)
            if path.startswith("-") or (name == "dd" and not word.text.startswith("of=")):
                continue
            # Written to, a device stays what it is; deleted or moved over, it does not.
            loses = posixpath.normpath(path) in STANDARD_DEVICES and not _FILLERS.fullmatch(name)
            if loses or self._outside(ShellWord(path, word.is_literal)):
                return "it deletes outside the workspace" if deletes else "it writes outside the workspace"
            if instructs := self._instructs(ShellWord(path, word.is_literal)):
                return instructs
            recursive = name == "rm" and re.search(r"(^| )(-[a-zA-Z]*[rR]|--recursive)", flags)
            if recursive and (self._whole(word) or re.search(r"[$`]", "" if word.is_literal else path)):
                return "it deletes all that is below the workspace, or below a place that is not known"
        return ""

    def _instructs(self, word: ShellWord) -> str:
        relative = self._inside and not word.text.startswith("/")
        return _instructs(word) or (_instructs(ShellWord(f"{self._inside}{word.text}")) if relative else "")

    def _whole(self, word: ShellWord) -> bool:
        path = posixpath.normpath(posixpath.join(self._base, word.text))
        named = posixpath.normpath(word.text or ".") in (".", "*", self._workspace) or word.text in ("./*", ".*")
        return named or path in (".", self._workspace)

    def _outside(self, word: ShellWord, *, loose: bool = False) -> bool:
        """Whether a word is a path that is known to be out of the workspace; with `loose`, or may be."""
        text = word.text.strip("\"'")
        if not word.is_literal:
            known = re.split(r"[$`*?\[{]", text)[0]
            away = re.match(r"~|\$\{?(HOME|OLDPWD)", text) or re.search(r"\.\.|[{,][/~]", text)
            if away or (loose and not known):
                return True
            text = posixpath.dirname(known) or "."
        path = posixpath.normpath(posixpath.join(self._base, text) if text.startswith(".") else text) if text else "."
        if path.startswith("/"):
            return not any(_below(path, place) for place in self._places)
        return path == ".." or path.startswith("../") or (self._elsewhere and not path.startswith("-"))


def _moves(part: CommandPart) -> bool:
    """Whether a part goes to another folder, or may run something there."""
    elsewhere = any(re.match(r"-\w*C|--(chdir|directory)|-(exec|ok)dir", word.text) for word in part.words)
    return elsewhere or part.kind == "unknown" or part.name in ("cd", "pushd", "popd")


def _instructs(word: ShellWord) -> str:
    """Why a file that is written must be seen, when it speaks to agents or programs of later days."""
    if is_protected_path(word.text):
        return PROTECTED
    # A folder that is copied or moved there is all that is in it.
    told = is_instruction_path(word.text) or is_instruction_path(f"{word.text}/x")
    return "it changes what tells agents, editors or build services what to do" if told else ""


def _outputs(name: str, words: Sequence[ShellWord]) -> Iterator[ShellWord]:
    """The files and folders that a command is told to write to."""
    for number, word in enumerate(words):
        if found := _OUTPUT.fullmatch(word.text):
            yield ShellWord(found[3], word.is_literal) if found[3] else (*words[number + 1 :], ShellWord(""))[0]
    if name == "git":
        yield from _git_places(words)
        words = words[_git_options([word.text for word in words]) :]
    operands = [word for word in words if not word.text.startswith("-")]
    if name == "git" and operands:
        before = {"clone": 2, "init": 1, "worktree": 2}.get(operands[0].text, len(operands))
        yield from operands[before:]


def _git_places(words: Sequence[ShellWord]) -> Iterator[ShellWord]:
    """The folders in which git is told to work, where it does more than read."""
    options = _git_options([word.text for word in words])
    if _reads(CommandPart("command", (ShellWord("git"), *words[options:]))):
        return
    for number, word in enumerate(words[:options]):
        name, _, value = word.text.partition("=")
        if name in ("-C", "--git-dir", "--work-tree"):
            yield ShellWord(value, word.is_literal) if value else (*words[number + 1 :], ShellWord(""))[0]


def _may_be_secret(word: ShellWord, name: str) -> bool:
    """Whether a word names a file that may hold secrets, also among others."""
    text = word.text.strip("\"'")
    if word.is_literal:
        # A name may stick to an option, or to what it is a part of: `-f.env`, `if=.env`, `HEAD:.env`, `@.env`.
        glued = [] if text.startswith(("--exclude", "--ignore")) else [*re.split(r"[=:@]", text), text[2:]]
        named = [text, *(glued if text.startswith("-") else glued[:-1])]
        return any(_SECRET.search(one.rstrip("/")) for one in named)
    for piece in (text, *re.split(r"[{},:=\"'`$()\s-]+", text)):
        last = posixpath.basename(piece)
        if _SECRET.search(piece):
            return True
        if re.search(r"[*?\[]", last) and re.search(r"[\w.]", last) and name != "ls":
            # To a shell a wildcard does not stand for the first dot of a name.
            names = (one for one in _SECRETS if one[0] == last[0] or one[0] != ".")
            if any(fnmatchcase(one, last) for one in names):
                return True
    return False


def _below(path: str, place: str) -> bool:
    return path == place or path.startswith(f"{place}/")


def _known(part: CommandPart) -> str:
    """What the table says against a command."""
    name = posixpath.basename(part.name)
    words = [word.text for word in part.words[1:]]
    if name == "git":
        words = [_spelled_out(word, _GIT_LONG) for word in words]
        options = _git_options(words)
        if _GIT_RUNS.search(" ".join(words[:options])):
            return RUNS
        words = words[options:]
    told = " ".join(words)
    for names, pattern, why in _DANGERS:
        if re.fullmatch(names, name) and re.match(pattern, told, re.DOTALL):
            return why
    return ""


def _git_options(words: Sequence[str]) -> int:
    """How many words stand before what git is to do."""
    number = 0
    while number < len(words) and words[number].startswith("-"):
        number += 2 if words[number] in _GIT_VALUES else 1
    return number


def _reads(part: CommandPart) -> bool:
    """Whether a command is known to read and do nothing else."""
    name, words = part.name, list(part.words[1:])
    if name == "git":
        while words and _GIT_OPTION.fullmatch(words[0].text):
            words.pop(0)
        if words:
            name = f"git {words.pop(0).text}"
    more = next((more for names, *more in _READERS if re.fullmatch(names, name)), None)
    if more is None:
        return False
    letters, options, other = more
    # A word that is not known before it runs may be any of them.
    return not any(more) or all(
        word.is_literal and not _does_more(word.text, letters, options, other) for word in words
    )


def _does_more(word: str, letters: str, options: str, other: str) -> bool:
    if letters and re.match(rf"-[a-zA-Z0-9]*[{letters}]", word):
        return True
    if word.startswith("--") and _spelled_out(word, options).partition("=")[0][2:] in options.split():
        return True
    return bool(other) and re.fullmatch(other, word, re.DOTALL) is not None


def _spelled_out(word: str, options: str) -> str:
    """A long option in full: most programs take the beginning of one for the whole."""
    name, equals, value = word.partition("=")
    if not re.match(r"--.", name):
        return word
    return next((f"--{one}{equals}{value}" for one in options.split() if one.startswith(name[2:])), word)
