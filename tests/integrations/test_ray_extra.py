"""The package without the extra that it needs."""

import subprocess
import sys


def test_without_ray_the_import_says_what_to_install() -> None:
    program = "import sys; sys.modules['ray'] = None; import rolltape.integrations.ray"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "ConfigError: rolltape.integrations.ray needs the package ray." in done.stderr
    assert "pip install 'rolltape[ray]'" in done.stderr
