"""The sources file: every fault is said, a source goes on top of its preset, secrets stand in no message."""

from pathlib import Path

import pytest

from coordinator.hooks.config import PRESETS, FaultySourcesError, load
from coordinator.hooks.hooks import sites_of
from tests.hooks.senders import LONG, PLAIN, SOURCES, WHSEC


def read(folder: Path, text: str):
    file = folder / "sources.toml"
    file.write_text(text)
    return load(file)


def faults(folder: Path, text: str) -> list[str]:
    with pytest.raises(FaultySourcesError) as raised:
        read(folder, text)
    return raised.value.faults


def test_each_preset_needs_only_its_secret(tmp_path: Path) -> None:
    assert set(read(tmp_path, SOURCES)) == set(PRESETS)


def test_every_fault_is_said_at_once(tmp_path: Path) -> None:
    text = f"""
    [sources.Blog]
    preset = "ghost"
    [sources.one]
    preset = "ghots"
    check = {{ kind = "ghost", secrets = ["{PLAIN}"] }}
    [sources.two]
    preset = "ghost"
    [sources.three]
    preset = "ghost"
    check.secrets = ["{PLAIN}"]
    wehn = "true"
    when = "body.post["
    values.title = "nosuch("
    values.wanted = "body.ready && !body.post.done"
    jobs.article.prompt = "{{% for x in %}}"
    jobs.article.fields.sepc = "body.x"
    jobs.article.submission.key = "mine"
    """
    told = "\n".join(faults(tmp_path, text))

    for part in [
        "sources.Blog: a source's name",
        "sources.one.preset",
        "sources.two.check.ghost: needs a secret",
        "sources.three.wehn",
        "sources.three.when: not JMESPath",
        "sources.three.values.title: not JMESPath",
        "sources.three.values.wanted: !a.b is (!a).b",
        "sources.three.jobs.article.prompt: not a template",
        "'sepc' is no field of a submission",
        "'key' is no field of a submission",
    ]:
        assert part in told


@pytest.mark.parametrize(
    ("check", "says"),
    [
        ('kind = "standard", secrets = ["{0}"]', "secret 1 is not whsec_"),
        ('kind = "standard", secrets = ["whsec_{0}"]', "secret 1 is not whsec_"),
        ('kind = "ghost", secrets = ["short {0}"]', "secret 1 has less than 16 characters"),
        ('kind = "contentful", secrets = ["{0}"]', "secret 1 is not 64 characters"),
        ('kind = "bearer", secrets = ["{0}"], header = "X Y"', "header"),
        ('kind = "psychic", secrets = ["{0}"]', "psychic"),
        ('kind = "hmac", secrets = ["{0}"]', "header"),
    ],
)
def test_a_check_that_can_not_work_is_refused_without_telling_the_secret(tmp_path: Path, check: str, says: str) -> None:
    text = f'[sources.a]\ncheck = {{ {check.format("s3cr3t")} }}\njobs.x = {{ kind = "article", key = ["body.id"] }}'

    told = "\n".join(faults(tmp_path, text))

    assert says in told
    assert "s3cr3t" not in told


def test_a_secret_can_stand_in_a_file_that_only_its_owner_reads(tmp_path: Path) -> None:
    secret = tmp_path / "blog.secret"
    secret.write_text(f"{WHSEC}\n\n")
    text = '[sources.blog]\npreset = "standard"\ncheck.secret_files = ["blog.secret"]'
    secret.chmod(0o640)
    assert "must be readable by its owner only" in faults(tmp_path, text)[0]

    secret.chmod(0o600)
    found = read(tmp_path, text)["blog"].check

    assert [one.get_secret_value() for one in found.secrets] == [WHSEC]
    assert WHSEC not in repr(found)
    secret.unlink()
    assert "No such file" in faults(tmp_path, text)[0]


def test_a_source_replaces_one_part_of_its_preset_and_keeps_the_rest(tmp_path: Path) -> None:
    text = f"""
    [sources.blog]
    preset = "wordpress"
    check.secrets = ["{WHSEC}"]
    ignore."not for us" = "body.data.post_type != 'post'"
    jobs.hero_image.enabled = false
    jobs.article.submission = {{ model = "llama3.1:8b", review = true }}
    jobs.article.labels.language = "body.data.language"
    """
    found = read(tmp_path, text)["blog"]

    assert set(found.ignore) == {"own write-back", "not for us"}
    assert set(found.jobs["article"].labels) == {"site", "document", "wordpress_post", "language"}
    assert found.jobs["article"].submission == {"model": "llama3.1:8b", "review": True}
    assert found.jobs["article"].prompt
    assert not found.jobs["hero_image"].enabled


def test_a_check_of_another_kind_replaces_the_whole_check(tmp_path: Path) -> None:
    text = f'[sources.d]\npreset = "directus"\ncheck = {{ kind = "contentful", secrets = ["{LONG}"] }}'

    assert read(tmp_path, text)["d"].check.kind == "contentful"


def test_where_results_go_back_to_is_named_beside_the_source(tmp_path: Path) -> None:
    (tmp_path / "blog.password").write_text("xxxx yyyy\n")
    text = f"""
    [sources.blog]
    preset = "wordpress"
    check.secrets = ["{WHSEC}"]
    publish = "wordpress"
    [sources.blog.wordpress]
    url = "https://blog.example"
    user = "tandem"
    app_password_file = "blog.password"
    """
    sources = read(tmp_path, text)

    site = sites_of(sources, {})["blog"]
    assert (site.url, site.password()) == ("https://blog.example", "xxxx yyyy")
    assert site.replace is False  # the plugin asks for what a post lacks
    assert sites_of(read(tmp_path, text + "replace = true"), {})["blog"].replace is True
    assert "go together" in faults(tmp_path, text.replace('publish = "wordpress"', ""))[0]


def test_a_file_that_is_not_toml_or_has_other_tables_is_refused(tmp_path: Path) -> None:
    assert faults(tmp_path, "[sources")
    assert faults(tmp_path, "[source.blog]") == ["source: unknown; sources stand in [sources.NAME]"]
    assert faults(tmp_path, "sources = 3") == ["sources: must be a table"]
    with pytest.raises(FaultySourcesError, match="No such file"):
        load(tmp_path / "none.toml")
    assert read(tmp_path, "") == {}
