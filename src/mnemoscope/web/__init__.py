"""The web server: browses an atlas, collects judgements, traces prompts and intervenes. See app.py.

How to add a page. A page is one name: `show/pages/NAME.py` makes its `Page` from an edition of the atlas, without web;
`show/pages/templates/NAME.html` extends `page.html` (blocks `main`, `head`, `keys`) and has the filters `token`,
`running`, `percent`, `number`, `count`, `part`; links are written `<a {{ link(address) }}>`. Its route is in
`routes/browsing.py`, or, if it is more complex, in a module `routes/NAME.py` whose `add_pages(routes, site)`
`app.create_app` calls: use `page_routes.both(router, site, PATH, name=..., kept=...)` on a plain `def` that takes the
request and returns the Page. Errors of errors.py become pages automatically; raise starlette's `HTTPException(status,
"One sentence.")` for others. `site.edition()` is the atlas with its caches: `pages.get(key, make)` caches pages and
views, `tables` the large objects that many pages need.

Pages that depend on more than the address (`kept=False`) get `csrf`; their forms post it as the field `csrf`, and every
post route first awaits `security.check_form(site, request)`. Requests without the access token enter where
`AnnotatorSession.admits` allows it, which is how invitations work.

The model is behind `site.model` (None without --model): `site.model.answer(key, make)` runs it, one call at a time.
Only model_worker.py and model_answers.py may import tracing, models or torch; page modules import these two inside
their functions.
"""

from mnemoscope.web.serving import serve
from mnemoscope.web.settings import Settings

__all__ = ["Settings", "serve"]
