"""The `judge` section of a configuration."""

import os
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from dojang.core.errors import ConfigError
from dojang.core.section import Section
from dojang.judge.languages import LANGUAGES
from dojang.judge.pool import JudgePool
from dojang.programs import IoTest, Submission, TestSuite
from dojang.protocols import Judge, MultiNodeJudge
from dojang.types import Outcome

__all__ = ["JudgeConfig"]


class JudgeConfig(Section):
    """Judge settings, used by tasks that run programs."""

    isolation: Literal["auto", "namespaces", "landlock", "seccomp", "none"] = "auto"
    """Isolation of judged programs. auto takes the strongest level this machine supports and refuses to run without
    any; none applies resource limits only."""
    workers: int = Field(default=0, ge=0, le=4096)
    """Number of worker processes (programs judged at a time), in a Ray cluster on each machine. 0 means one per core;
    in a Ray cluster, the cores that trainers and engines leave free."""
    python: str = ""
    """Path to the Python interpreter that runs judged programs, which may import its packages. Empty uses dojang's
    interpreter without its packages."""
    packages: list[str] = Field(default_factory=list)
    """Packages that judged Python programs may import, by import name, taken from the judging interpreter or from
    dojang's. With judge.python, packages it must have."""
    url: list[str] = Field(default_factory=list)
    """URLs of judge services to send programs to, instead of judging on this machine. Several share the load."""
    token_env: str = "DOJANG_JUDGE_TOKEN"
    """Name of the environment variable that holds the services' token."""

    @field_validator("url")
    @classmethod
    def _are_urls(cls, urls: list[str]) -> list[str]:
        for url in urls:
            if not url.startswith(("http://", "https://")):
                raise ValueError(f"{url!r} is not the URL of a judge service; write it like http://HOST:8642")
        return urls

    @field_validator("packages")
    @classmethod
    def _are_names(cls, packages: list[str]) -> list[str]:
        for name in packages:
            if not name.isidentifier():
                raise ValueError(f"{name!r} is not a package's import name such as sortedcontainers")
        return packages

    def make(self, cache: Path, *, fail_fast: bool = False) -> Judge:
        """Create the judge. It starts nothing until it is used."""
        if not self.url:
            return JudgePool(
                cache=cache,
                workers=self.workers,
                isolation=self.isolation,
                python=self.python,
                packages=self.packages,
            )
        from dojang.judge.client import RemoteJudge, RetryPolicy

        policy = RetryPolicy(total_s=30.0, retries=1) if fail_fast else RetryPolicy()
        return RemoteJudge(self.url, os.environ.get(self.token_env) or None, policy=policy)

    async def check(self, judge: Judge, language: str) -> None:
        """Judge a trivial program before the run starts, to find a machine that cannot judge."""
        imports = "".join(f"import {name}\n" for name in self.packages) if language == "python3" else ""
        program = Submission(language, imports + LANGUAGES[language].trivial, TestSuite((IoTest("", ""),)))
        if isinstance(judge, MultiNodeJudge):
            found = [(f"on {address}", judgement) for address, judgement in await judge.judge_on_every_node(program)]
        elif isinstance(judge, JudgePool):
            judge.host.launch_spec(language, "")  # its error names what is missing
            found = [("here", await judge.judge(program))]
        else:
            client = self.make(Path(), fail_fast=True)  # do not wait long for a service that is down
            found = [(f"at {', '.join(self.url)}", await client.judge(program))]
        for where, judgement in found:
            if judgement.outcome is not Outcome.ACCEPTED:
                remedy = "`dojang judge selftest` says more"
                if isinstance(judge, JudgePool) and str(judge.host.cache) in judgement.detail:
                    remedy = "set DOJANG_CACHE to a directory that can be written"
                raise ConfigError(
                    f"{language} programs cannot be judged {where}: {judgement.detail or judgement.outcome}; {remedy}"
                )
