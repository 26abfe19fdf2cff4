"""Sphinx configuration: `make docs` builds the site into docs/_build/html."""

import sys
from importlib import metadata
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS / "_extensions"))

project = "Coterie"
copyright = "The Coterie contributors"
author = "The Coterie contributors"
release = metadata.version("coterie")
version = release

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "docstrings",
    "equations",
    "searchterms",
]
exclude_patterns = ["_build"]

# Notebooks are shown with the outputs that they have: `python docs/generate.py --notebooks` executes them.
nb_execution_mode = "off"

# Equations are typeset when the site is built: readers need no network and no JavaScript.
html_math_renderer = "mathml"
myst_fence_as_directive = ["math"]

# Pages are Markdown. Headings get the same anchors as on GitHub, and HTML images are copied like Markdown images.
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "html_image"]
myst_heading_anchors = 4
suppress_warnings = [
    "myst.header",  # generated tables begin with a third-level heading
    "misc.highlighting_failure",  # excerpts of YAML are shortened with "..."
]

# The API reference comes from docstrings in Google style.
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_class_signature = "separated"
autodoc_default_options = {"exclude-members": "__init__, __new__"}
default_role = "py:obj"
add_module_names = False
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = f"Coterie {release}"
html_static_path = ["_static"]
html_css_files = ["coterie.css"]
html_theme_options = {"navigation_with_keys": True}
copybutton_prompt_text = r"\$ "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = False
