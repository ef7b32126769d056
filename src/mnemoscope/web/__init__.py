"""The page: browse an atlas in a browser, judge its memories, trace prompts and intervene. The door; see app.py.

How to add pages. A module `web/NAME.py` has

    NAV: tuple[tuple[str, str], ...]        what stands in the head of every page: (label, address); may be empty
    def router(site: Site) -> APIRouter     its routes, closing over `site`

and is named in `app.ROUTERS` before `browse` (which answers every single name at the top, such as `/L10.M222`). For a
page use `pages.both(router, site, PATH, template=..., kept=...)` on a plain `def` that returns `Page(title, data,
extra)`: data is the JSON twin and, key by key, what the template sees; `extra` a function giving what only the template
needs. A template extends `page.html` (blocks `main`, `head`, `keys`) and has the filters `token`, `running`, `percent`,
`number`, `count`, `part`. Errors of errors.py become pages by themselves; other refusals are starlette's
`HTTPException(status, "One sentence.")`. `site.atlas` is the atlas, `site.pages.get(key, make)` keeps
what was made from it, `site.tables` the large things that many pages need.

Pages whose answer depends on more than the address (`kept=False`) see `csrf`; their forms post it as the field `csrf`,
and every post route awaits `safety.checked(site, request)` first. Requests without the access token enter where one of
`site.admits` (functions of the request) lets them: that is how invitations work.

The model is behind `site.model` (None without --model): `site.model.answer(key, make)` runs it, one at a time. Only
model_worker.py and model_answers.py may import tracing, models or torch; page modules import from these inside their
functions.
"""

from mnemoscope.web.serving import serve
from mnemoscope.web.settings import Settings

__all__ = ["Settings", "serve"]
