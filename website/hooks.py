"""What MkDocs asks while it builds the site: pages that are made, beside those that are written in docs/."""

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from website import commands, plots, reference, repository
from website.links import link_mentions


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add pages to the navigation; leave out the theme's 404, whose links hold on a host alone."""
    config.theme.static_templates.discard("404.html")
    results = [page for page in repository.addresses().values() if page.startswith("results/")]
    interface = [*reference.navigation(), {"commands": list(commands.addresses().values())}]
    next(part["Performance"] for part in config.nav if "Performance" in part).append({"As printed": results})
    config.nav.append({"Interface": interface})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and drawings that are made."""
    made = {**reference.pages(), **commands.pages(), **repository.pages(), **plots.drawings()}
    for address, text in made.items():
        files.append(File.generated(config, address, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links to files of the repository that are pages here lead to these."""
    written = page.file.generated_by is None
    return repository.from_site(markdown, f"docs/{page.file.src_uri}") if written else markdown


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Names and pages that are named become links."""
    return link_mentions(html, page.url, files)
