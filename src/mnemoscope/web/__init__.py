"""The web server: browses an atlas, collects judgements, traces prompts and intervenes. See app.py.

How to add a page. `show/pages/NAME.py` makes its `Page` from an edition of the atlas, without web, and declares it in
`PAGES`: address, place in the contents, whether it is written as a file and made in advance (`PageKind` in page.py).
`show/pages/templates/NAME.html` extends `page.html` (blocks `main`, `head`, `keys`) and has the filters `token`,
`running`, `percent`, `number`, `count`, `part`; links are written `<a {{ link(address) }}>`. The module's name goes
into the list of `show/pages/contents.py`; routes, contents, files and prewarming follow. Errors of errors.py become
pages automatically; `PageNotFound("One sentence.")` is a 404. `edition.pages.get(key, make)` caches pages and views,
`edition.tables` the large objects that many pages need.

A page that needs more than the atlas has a route in `routes/`: a plain `def` under `both(router, PATH, name=...)` that
returns the Page; `OneSite` gives it the site. Such pages get `csrf`; their forms post it as the field `csrf`, and every
post route depends on `FORM`. Requests without the access token enter where `annotator_session.admits` allows it, which
is how invitations work.

The model is behind `OneWorker` (`site.model`, None without --model): `answer(key, make)` runs it, one call at a time.
Only model_worker.py and model_answers.py may import tracing, models or torch; page modules import these two inside
their functions.
"""

from mnemoscope.web.settings import Settings

__all__ = ["Settings"]
