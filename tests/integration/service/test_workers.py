"""Worker processes of the service: the same settings as in their parent."""

from tests.integration.service.conftest import Serve
from tests.support import sample_photo


def test_two_workers_open_a_model_by_its_name(serve: Serve) -> None:
    server = serve(model="fast", workers=2)
    (image,) = server.ask(sample_photo().read_bytes())["images"]
    assert len(image["faces"]) == 1
    assert server.log.read_text().count("Application startup complete") == 2
