"""The volumes of a pod: what each kind is on one machine, and how content follows its source."""

import logging
import stat
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rollcall_local.api_server.errors import MissingObjectError
from rollcall_local.kubelet import volume_content
from rollcall_local.kubelet.volume_content import VolumeError, VolumeSources
from rollcall_local.kubelet.volumes import KINDS, PodVolumes

Object = dict[str, Any]


class Sources:
    """ConfigMaps and Secrets that tests change, and tokens that are counted."""

    def __init__(self, folder: Path) -> None:
        self.claims = folder / "claims"
        self.claim_names = {"mine"}
        self.tokens = 0
        self.content: dict[tuple[str, str], dict[str, bytes]] = {
            ("ConfigMap", "settings"): {"a.yaml": b"a: 1", "b.yaml": b"b: 2"},
            ("Secret", "login"): {"password": b"xyz"},
        }

    def read(self, kind: str, name: str) -> Mapping[str, bytes]:
        try:
            return self.content[kind, name]
        except KeyError as error:
            raise MissingObjectError(f"{kind} {name} not found") from error

    def token(self, source: Object) -> str:
        self.tokens += 1
        return f"token {self.tokens} for {source['audience']}"


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    return Sources(tmp_path)


class Made:
    """A pod with one volume."""

    def __init__(self, sources: Sources, volume: Object) -> None:
        spec = {"volumes": [{"name": "v", **volume}]}
        fields = {"metadata.name": "web-0"}
        self.folder = sources.claims.parent / "volumes"
        self.volumes = PodVolumes(
            {"metadata": {"name": "web-0"}, "spec": spec},
            self.folder,
            VolumeSources(
                read=sources.read,
                token=sources.token,
                has_claim=sources.claim_names.__contains__,
                claims=sources.claims,
                fields=fields,
            ),
        )

    @property
    def files(self) -> dict[str, str]:
        """Content by path."""
        place = self.folder / "v"
        files = (path for path in place.rglob("*") if path.is_file())
        return {str(path.relative_to(place)): path.read_text() for path in files}

    def mount(self, **more: Any) -> Path:
        mounts = [{"name": "v", "mountPath": "/data", **more}]
        return self.volumes.mounts({"name": "worker", "volumeMounts": mounts})["/data"]


def prepared(sources: Sources, **volume: Any) -> Made:
    made = Made(sources, volume)
    made.volumes.prepare()
    return made


# --- each kind --------------------------------------------------------------------------------


def test_a_config_map_is_a_file_for_each_key(sources: Sources) -> None:
    made = prepared(sources, configMap={"name": "settings"})
    assert made.files == {"a.yaml": "a: 1", "b.yaml": "b: 2"}
    assert made.volumes.names() == {("ConfigMap", "settings")}


def test_items_say_which_keys_there_are_and_where(sources: Sources) -> None:
    items = [{"key": "a.yaml", "path": "deep/er/a.txt"}]
    made = prepared(sources, configMap={"name": "settings", "items": items})
    assert made.files == {"deep/er/a.txt": "a: 1"}


def test_a_secret_is_for_its_user_alone(sources: Sources) -> None:
    made = prepared(sources, secret={"secretName": "login"})
    assert made.files == {"password": "xyz"}
    assert mode(made.folder / "v" / "password") == 0o600
    assert made.volumes.names() == {("Secret", "login")}


def test_files_have_the_modes_that_a_volume_gives_them(sources: Sources) -> None:
    items = [{"key": "a.yaml", "path": "run", "mode": 0o700}, {"key": "b.yaml", "path": "read"}]
    source = {"name": "settings", "items": items, "defaultMode": 0o440}
    made = prepared(sources, configMap=source)
    assert mode(made.folder / "v" / "run") == 0o700
    assert mode(made.folder / "v" / "read") == 0o440


def mode(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


def test_an_empty_dir_is_empty_and_goes_with_its_pod(sources: Sources) -> None:
    made = prepared(sources, emptyDir={})
    place = made.mount()
    assert list(place.iterdir()) == []
    (place / "x").write_text("x")
    made.volumes.remove()
    assert not place.exists()


def test_a_claim_is_a_folder_that_outlives_its_pod(sources: Sources) -> None:
    made = prepared(sources, persistentVolumeClaim={"claimName": "mine"})
    (made.mount() / "x").write_text("kept")
    made.volumes.remove()
    assert (sources.claims / "mine" / "x").read_text() == "kept"


def test_a_claim_that_is_away_is_waited_for(sources: Sources) -> None:
    made = Made(sources, {"persistentVolumeClaim": {"claimName": "other"}})
    with pytest.raises(MissingObjectError, match='persistentvolumeclaim "other" not found'):
        made.volumes.prepare()
    sources.claim_names.add("other")
    made.volumes.prepare()


def test_a_host_path_is_itself(sources: Sources, tmp_path: Path) -> None:
    assert prepared(sources, hostPath={"path": str(tmp_path)}).mount() == tmp_path


def test_a_host_path_is_made_if_its_type_says_so(sources: Sources, tmp_path: Path) -> None:
    folder, file = tmp_path / "a" / "b", tmp_path / "file"
    prepared(sources, hostPath={"path": str(folder), "type": "DirectoryOrCreate"})
    prepared(sources, hostPath={"path": str(file), "type": "FileOrCreate"})
    assert folder.is_dir()
    assert file.is_file()
    with pytest.raises(VolumeError, match=r"volume v: .*/none does not exist on this machine"):
        prepared(sources, hostPath={"path": str(tmp_path / "none"), "type": "Directory"})


def test_the_downward_api_writes_fields(sources: Sources) -> None:
    items = [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]
    assert prepared(sources, downwardAPI={"items": items}).files == {"name": "web-0"}
    with pytest.raises(VolumeError, match=r"downwardAPI: fieldPath 'spec\.x' is not known here"):
        prepared(
            sources, downwardAPI={"items": [{"path": "x", "fieldRef": {"fieldPath": "spec.x"}}]}
        )


def test_several_sources_are_files_of_one_folder(sources: Sources) -> None:
    projected = [
        {"serviceAccountToken": {"path": "token", "audience": "them"}},
        {"configMap": {"name": "settings", "items": [{"key": "a.yaml", "path": "a"}]}},
        {"secret": {"name": "login"}},
        {"downwardAPI": {"items": [{"path": "n", "fieldRef": {"fieldPath": "metadata.name"}}]}},
    ]
    made = prepared(sources, projected={"sources": projected, "defaultMode": 0o444})
    assert made.files == {"token": "token 1 for them", "a": "a: 1", "password": "xyz", "n": "web-0"}
    assert mode(made.folder / "v" / "token") == 0o600
    assert mode(made.folder / "v" / "a") == 0o444
    assert made.volumes.names() == {("ConfigMap", "settings"), ("Secret", "login")}


def test_every_kind_that_is_said_to_be_there_is_tried_above() -> None:
    text = Path(__file__).read_text()
    assert [kind for kind in KINDS if f"{kind}=" not in text] == []


# --- what is away -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "volume", [{"configMap": {"name": "away"}}, {"secret": {"secretName": "away"}}]
)
def test_what_is_away_is_waited_for_unless_it_is_optional(sources: Sources, volume: Object) -> None:
    with pytest.raises(MissingObjectError, match="away not found"):
        prepared(sources, **volume)
    ((kind, source),) = volume.items()
    assert prepared(sources, **{kind: {**source, "optional": True}}).files == {}


def test_a_key_that_is_away_is_named_unless_it_is_optional(sources: Sources) -> None:
    source = {"name": "settings", "items": [{"key": "c", "path": "c"}]}
    with pytest.raises(VolumeError, match="ConfigMap settings has no key c"):
        prepared(sources, configMap=source)
    assert prepared(sources, configMap={**source, "optional": True}).files == {}


# --- what changes -----------------------------------------------------------------------------


def test_a_config_map_that_changes_changes_the_files(sources: Sources) -> None:
    made = prepared(sources, configMap={"name": "settings"})
    kept = (made.folder / "v" / "b.yaml").stat().st_ino
    sources.content["ConfigMap", "settings"] = {"b.yaml": b"b: 2", "c.yaml": b"c: 3"}
    made.volumes.refresh()
    assert made.files == {"b.yaml": "b: 2", "c.yaml": "c: 3"}
    assert (made.folder / "v" / "b.yaml").stat().st_ino == kept


def test_a_file_is_replaced_whole(sources: Sources) -> None:
    made = prepared(sources, configMap={"name": "settings"})
    with (made.folder / "v" / "a.yaml").open() as reader:
        sources.content["ConfigMap", "settings"]["a.yaml"] = b"another"
        made.volumes.refresh()
        assert reader.read() == "a: 1"
    assert made.files["a.yaml"] == "another"


def test_what_is_away_later_stays_as_it_was(
    sources: Sources, caplog: pytest.LogCaptureFixture
) -> None:
    made = prepared(sources, secret={"secretName": "login"})
    sources.content.clear()
    made.volumes.refresh()
    assert made.files == {"password": "xyz"}
    assert caplog.text == ""


def test_what_cannot_be_had_later_is_logged_and_the_rest_is_renewed(
    sources: Sources, caplog: pytest.LogCaptureFixture
) -> None:
    keyed = {"name": "settings", "items": [{"key": "a.yaml", "path": "a"}]}
    made = Made(sources, {"configMap": keyed})
    made.volumes._pod["spec"]["volumes"].append({"name": "w", "secret": {"secretName": "login"}})
    made.volumes.prepare()
    sources.content["ConfigMap", "settings"].clear()
    sources.content["Secret", "login"]["password"] = b"new"
    with caplog.at_level(logging.WARNING):
        made.volumes.refresh()
    assert made.files == {"a": "a: 1"}
    assert (made.folder / "w" / "password").read_text() == "new"
    assert "Volume v of pod web-0 is as before: ConfigMap settings has no key a.yaml" in caplog.text


def test_what_a_container_writes_beside_stays(sources: Sources) -> None:
    made = prepared(sources, emptyDir={})
    (made.mount() / "x").write_text("x")
    made.volumes.refresh()
    made.volumes.prepare()
    assert made.files == {"x": "x"}


def test_a_token_is_renewed_at_four_fifths_of_its_time(
    sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(volume_content, "time", SimpleNamespace(time=lambda: clock.now))
    token = {"path": "token", "audience": "them", "expirationSeconds": 1000}
    made = prepared(sources, projected={"sources": [{"serviceAccountToken": token}]})
    clock.now += 799
    made.volumes.refresh()
    assert made.files == {"token": "token 1 for them"}
    clock.now += 1
    made.volumes.refresh()
    assert made.files == {"token": "token 2 for them"}
    clock.now += 799
    made.volumes.refresh()
    assert sources.tokens == 2


# --- paths that lead out ----------------------------------------------------------------------


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x"])
def test_a_path_that_leads_out_of_its_volume_is_refused(sources: Sources, path: str) -> None:
    source = {"name": "settings", "items": [{"key": "a.yaml", "path": path}]}
    with pytest.raises(VolumeError, match=f"volume v: path: '{path}' leads out"):
        prepared(sources, configMap=source)


def test_a_link_that_a_container_has_made_is_not_followed_out(
    sources: Sources, tmp_path: Path
) -> None:
    made = prepared(sources, configMap={"name": "settings"})
    outside = tmp_path / "outside"
    outside.write_text("theirs")
    file = made.folder / "v" / "a.yaml"
    file.unlink()
    file.symlink_to(outside)
    sources.content["ConfigMap", "settings"]["a.yaml"] = b"new"
    made.volumes.refresh()
    assert outside.read_text() == "theirs"


@pytest.mark.parametrize("path", ["../x", "/etc", "link/x"])
def test_a_sub_path_that_leads_out_of_its_volume_is_refused(
    sources: Sources, tmp_path: Path, path: str
) -> None:
    made = prepared(sources, emptyDir={})
    (made.mount() / "link").symlink_to(tmp_path)
    message = rf"container worker: volumeMounts\[0\].subPath: '{path}' leads out of v"
    with pytest.raises(VolumeError, match=message):
        made.mount(subPath=path)
    assert not (tmp_path / "x").exists()


def test_a_claim_or_volume_cannot_be_named_out_of_its_folder(sources: Sources) -> None:
    sources.claim_names.add("../x")
    with pytest.raises(VolumeError, match=r"claimName: '../x' leads out of claims"):
        prepared(sources, persistentVolumeClaim={"claimName": "../x"})
    with pytest.raises(VolumeError, match=r"the name of a volume: '\.\./x' leads out of volumes"):
        prepared(sources, name="../x", emptyDir={})


# --- mounts -----------------------------------------------------------------------------------


def test_a_sub_path_is_a_folder_that_is_made_or_a_file(sources: Sources) -> None:
    place = prepared(sources, emptyDir={}).mount(subPath="a/b")
    assert place.is_dir()
    made = prepared(sources, configMap={"name": "settings"})
    assert made.mount(subPath="a.yaml").read_text() == "a: 1"


def test_a_slash_at_the_end_of_a_mount_path_says_nothing(sources: Sources) -> None:
    made = prepared(sources, emptyDir={})
    assert made.mount(mountPath="/data/") == made.folder / "v"


def test_a_mount_of_no_volume_is_named(sources: Sources) -> None:
    made = prepared(sources, emptyDir={})
    with pytest.raises(VolumeError, match=r"worker: volumeMounts\[0\].name: there is no volume w"):
        made.mount(name="w")
    with pytest.raises(VolumeError, match=r"volumeMounts\[0\].subPathExpr: is not there"):
        made.mount(subPathExpr="$(X)")
