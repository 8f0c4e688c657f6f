"""Word lists for the sentence splitter: abbreviations, and words that begin a sentence or cannot.

Fixed here instead of trained, so that the same text always has the same sentences.
"""
# ruff: noqa: RUF001 - some signs look like letters


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Never at the end of a sentence: something has to follow.
INTRODUCING = _words(
    "e.g i.e eg cf vs viz ca esp aka a.k.a w.r.t op z.b d.h u.a bzw ggf vgl inkl bspw evtl sog einschl insb "
    "p.ex c.-à-d"
)
TITLES = _words(
    "Dr Drs Mr Mrs Ms Mx Prof Gen Col Capt Lt Sgt Rev Sen Rep Gov Hon Messrs Mme Mlle MM Hr Fr Ing Dipl Mt"
)

# Mid-sentence before a number or a letter: "Fig. 3", "Eq. (2)", "Figs. A and B". One that is also an English
# word needs a digit after it ("no. 5") or a capital of its own ("App. B").
NUMBERED = _words(
    "fig figs eq eqs eqn eqns secs sect sects ch chap vol vols pp thm lem alg refs nr abb kap §"
)
NUMBERED_BY_DIGIT = _words("no nos sec p pg l ll n v ver vers c b d col cols par para pos ref tab rev ed")
NUMBERED_IF_CAPITAL = _words(
    "App Apps Tab Tabs Art Arts Def Defs Prop Props Cor Ex Exs Ref Pt Sec Ch Alg Abs Bd S Cat Mod Ser Suppl "
    "Std Rel Dwg Pat Hwy Rm Bldg Ver Col Pos Par Para Sat Sun"
)

REVISIONS = _words("rev ver col par pos ref tab")

# The last word of a phrase: mid-sentence before a number or a lower-case letter, never before a capital.
LAST_OF_PHRASE = _words("al jr sr b.c a.d jan feb mar apr jun jul aug sep sept oct nov dec")

# Parts of the names of journals and institutes: "Phys. Rev. Lett. 5"
OF_NAMES = _words(
    "Int Natl Acad Sci Res Adv Appl Autom Comput Commun Electr Electron Eng Lett Mach Math Mech Phys Proc "
    "Soc Symp Syst Technol Theor Trans Bull Conf"
)

# Mid-sentence before a lower-case letter, at the end before a capital: "5 min. later", "arms, legs, etc. They".
CLIPPED = _words(
    "etc usw a.m p.m sec secs min mins hr hrs yr yrs wk wks mo mos ft in lb lbs oz gal deg cit ibid no p "
    "fig ex accel attn calc curr desc distr elec elev encl ident impl init instr neg obj obs prev prob proj "
    "qual quant req seq sq struct subj subst sys tot util vel"
)
AFTER_CLOCK = _words(
    "monday tuesday wednesday thursday friday saturday sunday mon tue wed thu fri sat sun january february "
    "march april may june july august september october november december utc gmt est edt cst cdt mst mdt "
    "pst pdt cet cest bst ist jst eastern central mountain pacific"
)

# Mid-sentence or at the end: Punkt decides by the next word.
ABBREVIATIONS = _words(
    "approx incl excl resp max min avg temp freq coeff coord coords diam dia dim dims ext horiz vert qty "
    "misc orig alt med equiv cont abbrev mgmt mfg std typ rd bldg apt rm hwy tel env av mio mrd al inc ltd "
    "co corp llc gmbh jr sr st ave blvd dept univ inst assoc assn bros intl natl govt proc conf symp trans "
    "lett phys chem biol comput technol syst jan feb mar apr jun jul aug sep sept oct nov dec mon tue wed "
    "thu fri u.s u.k u.n e.u u.s.a d.c ph.d b.sc m.sc b.a m.a m.d b.c a.d est eds repr fig figs eq eqs eqn "
    "eqns sect sects vol vols pp thm lem"
)

# Words that begin a sentence wherever they have a capital, even after "U.S." or "the matrix A."
STARTERS = _words(
    "the this that these those it its he she they we you i a an in on at for from with by to as if when "
    "while where after before since because although though however therefore thus hence then there here "
    "also moreover furthermore finally both each every all some most many several not only our their his "
    "her your my what why how who which is are does do can so but and or yet see use note let unlike "
    "despite during without within between until unless once another other otherwise instead others nobody "
    "nothing everyone everything someone something anyone neither either any few more such no one two three "
    "four five six seven eight nine ten today now later still even again often sometimes usually always "
    "never similarly additionally consequently nevertheless meanwhile eventually generally typically about "
    "above below under over through against according given whether der die das ein eine es er sie wir dies "
    "diese dieser dann danach aber le la les un une il elle ils ce cette puis"
)

# Words that, in lower case, begin no sentence: they need something before them.
NEEDS_MORE = _words(
    "and or nor but of is are was were be been has have had can cannot could may might must shall should "
    "will would than that which whose by from with per via into to et und oder ist sind"
)

# A letter after one of these words is a label, not the initial of a name: "Plan B. Robots", "it is C. Robots"
LABELLED = _words(
    "answer appendix array axis bit block box branch bus button case category cell channel choice class "
    "client cluster coefficient column component condition constant curve dataset device dimension "
    "direction drive edge element endpoint equation event experiment factor field figure file flag format "
    "formula frame function gate grade graph group hepatitis host hypothesis index input instance interval "
    "item job key lane language layer letter level line link list loop machine matrix method mode model "
    "module network node number object operator option origin output page panel parameter part partition "
    "path phase pin plan point pool port position process product program programming quantity queue rack "
    "range region register replica resistor room route row rule run sample scenario section sector segment "
    "sequence series server service set shape side signal site slot solution source space stage state "
    "station step stream string subset switch symbol system table target task team tensor term terminal "
    "test theorem thread tier track tree trial tube type unit value variable variant vector version vertex "
    "vitamin volume zone is are was were equals at in on onto into than = + - * / < > × ∈ ⊂ ≤ ≥ ≈ ≠ →"
)

# Words before a German ordinal, which ends with a stop: "im 19. Jahrhundert"
ORDINAL = _words("der das dem den des im vom zum zur beim")
ORDINAL_LIKELY = _words("am die ab bis")

PARTICLES = _words("von van de del della der den di da do dos du el la le ten ter zu al bin ibn")
