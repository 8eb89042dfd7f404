"""A standalone cluster of Spark: a master, and a worker that starts its executors. Both listen on 127.0.0.1 alone."""

from collections.abc import Mapping
from pathlib import Path

import pyspark

from tests.servers.process import PrivateServer, free_port

HOME = Path(pyspark.__file__).parent


class SparkMaster(PrivateServer):
    """Gives the worker's executors to jobs."""

    READY = "new state: alive"

    def __init__(self, env: Mapping[str, str]) -> None:
        super().__init__()
        self.env = env
        self.port = free_port()
        self.start()

    @property
    def url(self) -> str:
        """For --master."""
        return f"spark://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        return _daemon("master.Master", self.env, "--port", str(self.port))


class SparkWorker(PrivateServer):
    """Has a core. The executors are its children."""

    READY = "successfully registered with master"

    def __init__(self, env: Mapping[str, str], master: str) -> None:
        super().__init__()
        self.env = env
        self.master = master
        self.start()

    def command(self) -> list[str]:
        size = ["--cores", "1", "--memory", "1g", "--work-dir", str(self.directory)]
        return _daemon("worker.Worker", self.env, *size, self.master)


def _daemon(name: str, env: Mapping[str, str], *arguments: str) -> list[str]:
    variables = [f"{variable}={value}" for variable, value in env.items()]
    where = ["--host", "127.0.0.1", "--webui-port", "0"]
    return ["env", *variables, str(HOME / "bin/spark-class"), f"org.apache.spark.deploy.{name}", *where, *arguments]
