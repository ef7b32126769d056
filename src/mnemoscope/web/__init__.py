"""The page: browse an atlas in a browser, judge its memories, trace prompts and intervene. The door; see app.py.

How to add pages. A page is one name: `show/pages/NAME.py` makes its `Page` from an edition of the atlas, without web;
`show/pages/templates/NAME.html` extends `page.html` (blocks `main`, `head`, `keys`) and has the filters `token`,
`running`, `percent`, `number`, `count`, `part`; links are written `<a {{ link(address) }}>`. Its route is in
`routes/browsing.py`, or, where there is more to it, in a module `routes/NAME.py` whose `router(site)` `app.create_app`
names: use `page_routes.both(router, site, PATH, name=..., kept=...)` on a plain `def` that takes the request and
returns the Page.
Errors of errors.py become pages by themselves; other refusals are starlette's `HTTPException(status, "One sentence.")`.
`site.edition()` is the atlas with what was made from it: `pages.get(key, make)` keeps pages and views, `tables` the
large things that many pages need.

Pages whose answer depends on more than the address (`kept=False`) see `csrf`; their forms post it as the field `csrf`,
and every post route awaits `security.check_form(site, request)` first. Requests without the access token enter where
`AnnotatorSession.admits` lets them: that is how invitations work.

The model is behind `site.model` (None without --model): `site.model.answer(key, make)` runs it, one at a time. Only
model_worker.py and model_answers.py may import tracing, models or torch; page modules import from these inside their
functions.
"""

from mnemoscope.web.serving import serve
from mnemoscope.web.settings import Settings

__all__ = ["Settings", "serve"]
