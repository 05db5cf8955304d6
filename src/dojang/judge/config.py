"""Where and how programs are judged: the `judge` section of a configuration."""

import os
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from dojang.core.errors import ConfigError
from dojang.core.section import Section
from dojang.judge.languages import LANGUAGES
from dojang.judge.pool import JudgePool
from dojang.programs import Exam, IoTest, Submission
from dojang.protocols import Judge, SpreadJudge
from dojang.types import Outcome

__all__ = ["JudgeConfig"]


class JudgeConfig(Section):
    """Judging programs; used by tasks that run some."""

    isolation: Literal["auto", "namespaces", "landlock", "seccomp", "none"] = "auto"
    """What keeps judged programs from the machine. auto takes the strongest it offers and refuses to run without
    any; none runs them with limits only."""
    workers: int = Field(default=0, ge=0, le=4096)
    """Programs judged at a time, in a Ray cluster on each machine; 0 is one per core, or what trainers and engines
    leave of the cluster's."""
    python: str = ""
    """Path of an interpreter for Python programs, which may then import its packages; the one dojang runs on, without
    its packages, if empty."""
    packages: list[str] = Field(default_factory=list)
    """Packages that Python programs may import, by the names they are imported by, from the judging interpreter or the
    one dojang runs on; with judge.python, packages it must have."""
    url: list[str] = Field(default_factory=list)
    """Judge services to send programs to, instead of judging on this machine; several share the work."""
    token_env: str = "DOJANG_JUDGE_TOKEN"
    """Environment variable that holds the token for them."""

    @field_validator("url")
    @classmethod
    def _are_urls(cls, urls: list[str]) -> list[str]:
        for url in urls:
            if not url.startswith(("http://", "https://")):
                raise ValueError(f"{url!r} is no address of a judge service; it looks like http://HOST:8642")
        return urls

    @field_validator("packages")
    @classmethod
    def _are_names(cls, packages: list[str]) -> list[str]:
        for name in packages:
            if not name.isidentifier():
                raise ValueError(f"{name!r} is no name of a package as `import` takes it, such as sortedcontainers")
        return packages

    def make(self, cache: Path, *, impatient: bool = False) -> Judge:
        """The judge. It costs nothing until it is used."""
        if not self.url:
            return JudgePool(
                cache=cache,
                workers=self.workers,
                isolation=self.isolation,
                python=self.python,
                packages=self.packages,
            )
        from dojang.judge.client import Patience, RemoteJudge

        patience = Patience(total_s=30.0, retries=1) if impatient else Patience()
        return RemoteJudge(self.url, os.environ.get(self.token_env) or None, patience=patience)

    async def check(self, judge: Judge, language: str) -> None:
        """Judge a trivial program: a machine that cannot is better known before a run than during it."""
        imports = "".join(f"import {name}\n" for name in self.packages) if language == "python3" else ""
        program = Submission(language, imports + LANGUAGES[language].trivial, Exam((IoTest("", ""),)))
        if isinstance(judge, SpreadJudge):
            found = [(f"on {address}", judgement) for address, judgement in await judge.everywhere(program)]
        elif isinstance(judge, JudgePool):
            judge.premises.how_to_run(language, "")  # says in one sentence what is missing
            found = [("here", await judge.judge(program))]
        else:
            hasty = self.make(Path(), impatient=True)  # a service that is not there need not be waited for
            found = [(f"at {', '.join(self.url)}", await hasty.judge(program))]
        for where, judgement in found:
            if judgement.outcome is not Outcome.ACCEPTED:
                raise ConfigError(
                    f"{language} programs cannot be judged {where}: {judgement.detail or judgement.outcome}; "
                    "`dojang judge selftest` says more"
                )
