"""People's judgements: campaigns of keys and blind controls, their storage, and their statistics.

In the order of a campaign::

    with open_store(atlas) as store:                      # ATLAS/annotations.sqlite, or another file
        store.start_campaign(keys_per_layer=10, seed=0)   # repeating it has no effect
        invitation = store.invite("Ada")                  # .token goes into Ada's link; store.renew, store.withdraw
        ada = store.annotator(invitation.token)           # None for an unknown token
        for place in store.places(ada):                   # code, kind (key | case), finished; Ada's own order
            view = store.view(place.code, ada)            # KeyView (prefixes, patterns, ...) or CaseView
        store.save(code, ada, kind="shallow", description="ends with of", marks=[0, 1, 4], pattern=0, key="from-page")
        store.retract(code, ada, pattern=0); store.undo(code, ada)
        store.finish(code, ada)                           # none=True: no pattern; done=False: resume it
        store.judge(code, ada, verdict="distant")         # a CaseView
        store.progress(ada); store.hand_in(ada)           # after that: store.others(code, ada)
        store.choose(MemoryId(10, 222))                   # a memory outside the campaign: returns its code
        results(store)                                    # tables of the page of results
        export(store, "judgements.csv"); import_judgements(store, "judgements.jsonl")

User errors raise AnnotationError with one plain line. A store is thread-safe, and several processes may open the same
database. `marks` are numbers of the view's prefixes. Give every judgement its own `key` (8 to 64 letters, digits, `-`,
`_`) and send it again under the same key if no answer came: it is stored once.
"""

from mnemoscope.annotate.campaigns.import_export import export, import_judgements
from mnemoscope.annotate.campaigns.results import compute_results as results
from mnemoscope.annotate.campaigns.store import Store, open_store
from mnemoscope.annotate.campaigns.views import Annotator, CaseView, KeyView

__all__ = ["Annotator", "CaseView", "KeyView", "Store", "export", "import_judgements", "open_store", "results"]
