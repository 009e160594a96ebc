"""MkDocs' hooks: pages that are generated, and links between pages."""

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from website import commands, plots, reference, repository
from website.links import link_mentions


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add pages to the navigation; leave out the theme's 404, whose links need a host."""
    config.theme.static_templates.discard("404.html")
    config.nav.append(
        {"Reference": [*reference.navigation(), {"robustdml, commands": list(commands.addresses().values())}]}
    )
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages and plots."""
    for address, text in {**reference.pages(), **commands.pages(), **repository.pages(), **plots.drawings()}.items():
        files.append(File.generated(config, address, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to files of the repository to their pages."""
    if page.file.generated_by is not None:
        return markdown
    return repository.from_site(markdown, f"docs/{page.file.src_uri}")


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make links of the names that a page mentions."""
    return link_mentions(html, page.url, files)
