"""People's judgements: a campaign of keys and blind controls, stored for good, and what they add up to.

In the order of a campaign::

    with open_store(atlas) as store:                      # ATLAS/annotations.sqlite, or a postgresql:// address
        store.start_campaign(keys_per_layer=10, seed=0)   # the same again: nothing happens
        invitation = store.invite("Ada")                  # .token goes into Ada's link; store.renew, store.withdraw
        ada = store.annotator(invitation.token)           # None for a token that is none
        for place in store.places(ada):                   # code, kind (key | case), finished; Ada's own order
            view = store.view(place.code, ada)            # KeyView (prefixes, patterns, ...) or CaseView
        store.save(code, ada, kind="shallow", description="ends with of", marks=[0, 1, 4], pattern=0, key="from-page")
        store.retract(code, ada, pattern=0); store.undo(code, ada)
        store.finish(code, ada)                           # none=True: no pattern; done=False: take it up again
        store.judge(code, ada, verdict="distant")         # a CaseView
        store.progress(ada); store.hand_in(ada)           # after that: store.others(code, ada)
        store.choose(MemoryId(10, 222))                   # a memory from its page, outside the campaign: its code
        results(store)                                    # tables for the page of results
        export(store, "judgements.csv"); import_judgements(store, "judgements.jsonl")

Whatever a person can mend is AnnotationError, one plain line. A store may be used by many threads at once, and several
processes may each have one. `marks` are numbers of the view's prefixes. Give every judgement a `key` of its own (8 to
64 letters, digits, `-`, `_`) and send it again under the same key when no answer came: it is stored once.
"""

from mnemoscope.annotate.campaigns.import_export import export, import_judgements
from mnemoscope.annotate.campaigns.results import compute_results as results
from mnemoscope.annotate.campaigns.store import Store, open_store
from mnemoscope.annotate.campaigns.views import Annotator, CaseView, KeyView

__all__ = ["Annotator", "CaseView", "KeyView", "Store", "export", "import_judgements", "open_store", "results"]
