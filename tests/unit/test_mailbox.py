"""Reports that nodes leave as files for a driver that they do not reach."""

import pytest

from tfos_ml.common.filesystems import StorageError
from tfos_ml.protocol.control_messages import NodeProgress, ReportProgress
from tfos_ml.protocol.mailbox import MailboxReader, MailboxWriter


def report(number):
    return ReportProgress(0, "link", number, NodeProgress(), number - 1, [{"metrics": {"loss": 1 / number}}])


def test_reports_beside_a_file_that_could_not_be_read_come_with_the_next_look(tmp_path):
    writer, reader = MailboxWriter(str(tmp_path)), MailboxReader(str(tmp_path))
    writer.call(report(1))
    broken = tmp_path / "0-000002.report"
    broken.mkdir()
    with pytest.raises(StorageError):
        reader.take()
    broken.rmdir()
    writer.call(report(2))
    assert reader.take() == [report(1), report(2)]
    assert reader.take() == []
