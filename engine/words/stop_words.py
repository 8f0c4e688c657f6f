"""Function words of the languages that a book may have: they tell its language, and a search leaves them out. Pure.

A list has the words that nearly every page has and that say nothing about its subject. English also leaves out more.
"""
# ruff: noqa: RUF001 - the words have the letters of their scripts

_ENGLISH = (
    "a about after again all also am an and any are as at be because been before being between both but by can could"
    " did do does doing during each few for from further had has have having he her here hers him his how i if in into"
    " is it its itself just me more most my no nor not now of off on once only or other our out over own same she should"
    " so some such than that the their them then there these they this those through to too under until up us very was"
    " we were what when where which while who whom whose why will with would you your"
)

_OTHERS = {
    "ar": "في من على إلى عن مع هذا هذه ذلك تلك التي الذي الذين ما ماذا لماذا متى كيف أين هل كم أي هو هي هم كان كانت يكون"
    " قد لقد لا لم لن ليس أن إن أو ثم و كل بعض بين بعد قبل عند حتى كما لكن أيضا غير منذ خلال حيث عندما إذا",
    "cs": "a aby ale ani bez by byl byla bylo co do ho i jak jako je jeho jejich jen jsem jsou k kde kdo kdy když která které"
    " který mezi může na nebo není o od po pod podle pro protože při s se si ta tak také tento to tom u v ve více však z za"
    " ze že",
    "da": "af alle at blev blive da de den denne der deres det dette dig din dog du efter eller en end er et for fra få han har"
    " havde hun hvad hvem hvor hvordan hvorfor i ikke ind jeg kan kunne man med meget men mere mod når og også om op over på"
    " sig skal som så til ud under var ved vi vil være",
    "de": "aber alle als also am an auch auf aus bei beim bin bis da damit dann das dass dein dem den der des die dies diese"
    " diesem diesen dieser dieses doch dort du durch ein eine einem einen einer eines er es etwas für gegen gibt habe haben"
    " hat hatte hatten hier hinter ich ihm ihn ihr ihre ihrem ihren ihrer im in ist ja jede jeder jedes jetzt kann kein keine"
    " können man mehr mein mit muss nach nicht nichts noch nun nur ob oder ohne schon sehr sein seine seinem seinen seiner"
    " seit sich sie sind so soll sondern über um und uns unter vom von vor war waren warum was weil welche welchem welchen"
    " welcher welches wenn wer werden wie wieder wird wo wurde wurden zu zum zur zwischen",
    "es": "a al algo antes aunque cada como cómo con cuál cuáles cuando cuándo cuánta cuántas cuánto cuántos de del desde después donde"
    " dónde durante e el él ella ellas ellos en entre era eran es esa ese eso esta está estaba están estas este esto estos"
    " fue fueron ha había han hasta hay la las le les lo los más me mi muy no nos o otra otras otro otros para pero por"
    " porque que qué quién quiénes se sea ser si sí sin sobre son su sus también tan te tiene tienen tu un una unas uno unos y"
    " ya yo",
    "fa": "از این آن با به برای تا در را که و یا است بود شد می‌شود شده کرد کردن کند هم هر چه چرا چگونه چیست کدام کجا یک دو بر"
    " پس اگر اما نیز خود ما شما آنها همه بین بعد پیش باید باشد دارد داشت هستند",
    "fi": "ei että he hän ja jo joka jos jotka kuin kun kuka koska miksi millainen missä mikä miten minä mitä mutta myös ne"
    " niin niiden nyt oli olivat olla on ole ovat se sekä sen sitä sinä tai tämä tämän vain vai voi voidaan vuonna",
    "fr": "à après au aucun aussi autre aux avait avant avec avoir c ce ceci cela ces cet cette chez comme comment d dans de des"
    " depuis deux donc dont du elle elles en entre est et étaient était été être eu fait il ils j je l la le les leur leurs"
    " lors lui m mais même n ne nos notre nous on ont ou où par pas pendant peut plus pour pourquoi qu quand que quel quelle"
    " quelles quels qui quoi s sa sans se ses si son sont sous sur t ta tes ton tous tout toute très tu un une vos votre vous"
    " y",
    "hi": "का के की को से में पर ने है हैं था थी थे हो होता होती होते और या कि यह ये वह वे इस इन उस उन इसके उसके इसका उसका"
    " इसकी उसकी जो जिस जिसे जब तब तो तक भी ही नहीं न एक कोई कुछ क्या क्यों कैसे कैसा कब कहाँ कहां कौन कौनसा किस किसने किसे"
    " कितना कितनी कितने अपना अपने अपनी साथ लिए द्वारा बाद पहले गया गई गए कर करना करते करता करती किया रहा रही रहे सकता सकते"
    " सकती लेकिन बहुत मैं हम आप मेरा मेरी",
    "hu": "a az és ez hogy nem is egy de van volt voltak csak meg már mint vagy ha azt ezt amely ami aki mi milyen miért mikor"
    " hogyan hol ki kell lehet még által után között során több minden fel le el be ezek azok szerint",
    "id": "yang dan di ke dari untuk dengan pada adalah ini itu tidak akan atau oleh dalam sebagai juga dapat telah karena"
    " apa apakah bagaimana mengapa kapan siapa mana berapa ada bisa lebih antara setelah sebelum para mereka kami kita saya",
    "it": "a ad agli ai al alla alle allo anche c che chi ci come con cosa così cui da dagli dai dal dalla dalle de degli dei del"
    " della delle dello di dopo dove due e è ed era erano essere fra gli ha hanno i il in io l la le lei li lo loro lui ma"
    " mentre mi molto ne nei nel nella nelle nello noi non o ogni per perché più poi prima può qual quale quali quando quanta"
    " quante quanti quanto quella quelle quelli quello questa queste questi questo se sei si sia sono sta su sua sue sugli sui"
    " sul sulla sulle suo suoi tra tu un una uno vi",
    "nl": "aan al alle als bij dan dat de deze die dit door een en er geen had hadden haar heb hebben heeft hem het hij hoe hun ik"
    " in is ja je kan kon kunnen maar me meer men met mij mijn moet na naar niet niets nog nu of om omdat onder ons ook op"
    " over te tegen tot tussen u uit van veel voor waar waarom wanneer want waren was wat we wel welk welke werd werden wie"
    " wij wordt worden zal ze zich zij zijn zo zonder zou",
    "no": "alle at av ble bli da de den denne der deres det dette du eller en enn er et etter for fra få han har hadde hun hva"
    " hvem hvor hvordan hvorfor i ikke inn jeg kan kunne man med meget men mer mot når og også om opp over på seg skal som så"
    " til under ut var ved vi vil være",
    "pl": "a ale bez być był była było były co czy czym dla do gdy gdzie i ich ile im ja jak jaka jakie jako jest jego jej już"
    " każdy kiedy kto która które który ma może można na nad nie niż o od on ona oni oraz po pod przed przez przy się są ta tak"
    " także tam te tego tej ten to tylko tym u w we więc z za ze że",
    "pt": "a à ao aos as às até com como da das de dela dele delas deles depois do dos e é ela elas ele eles em entre era eram"
    " essa esse esta está estão este eu foi foram há isso isto já lhe mais mas me mesmo meu minha muito na não nas nem no nos o"
    " onde os ou para pela pelas pelo pelos por porque qual quais quando quanta quantas quanto quantos que quê quem se sem ser"
    " seu seus são só sobre sua suas também te tem têm tinha um uma você",
    "ro": "a acest această ai al ale am ar are asupra au ca că când care ce cel cele cine cu cum da dacă de deci din după ea ei el"
    " ele era este eu fi fie fost în înainte între la le lor lui mai mult nu o pe pentru prin sa sau se și sunt un unde unei"
    " unor unui",
    "ru": "а без более бы был была были было быть в вам вас ведь весь во вот все всего всех вы где да даже для до его ее её если"
    " есть еще ещё же за здесь и из или им их к как какая какие какой какое ко когда кого кто куда ли между меня мне может мы"
    " на над надо нас не него нее нет ни них но ну о об один он она они оно от очень по под после потом потому почему при"
    " про с сам свою себя сколько со так также такой там те тем то того тоже той только том ты у уже чего чем через что чтобы"
    " эта эти это этого этой этом этот я",
    "sv": "alla att av blev bli då de dem den denna deras det detta dig din du efter eller en ett från för få ha hade han har hon"
    " hur i inte jag kan kunde man med men mer mot mycket när och också om på sig ska skall som så till under upp ut vad var"
    " varför vem vi vid vilka vilken vilket är över",
    "tr": "acaba ama ancak az bana bazı ben bile bir biri biz bu bunu bunun çok çünkü da daha de değil diye dolayı en gibi göre"
    " hangi hem hep her hiç için ile ise kaç kadar kendi ki kim kimin mi mı mu mü nasıl ne neden nedir nerede niçin o olan"
    " olarak oldu olduğu olur onlar onu onun sonra şey şu tüm üzere var ve veya ya yani yok yoksa mısın misin musun müsün mıdır midir",
    "uk": "а але без би бо був була були було бути в вам вас ви від він вона вони воно все всі де для до є ж за з зі і із її їх й"
    " його коли ми на не ні но про по під при та так також те ти то тобто той у хто це цей цього ця чи чим чому що щоб як яка"
    " який які",
    "ur": "کا کے کی کو سے میں پر نے ہے ہیں تھا تھی تھے ہو ہوتا ہوتی ہوتے اور یا کہ یہ وہ اس ان اسے انہیں جو جس جب تب تو تک بھی"
    " ہی نہیں نہ ایک کوئی کچھ کیا کیوں کیسے کیسا کب کہاں کون کس کسے کتنا کتنی کتنے اپنا اپنے اپنی ساتھ لیے ذریعے بعد پہلے گیا"
    " گئی گئے کر کرنا کرتے کرتا کرتی رہا رہی رہے سکتا سکتے سکتی لیکن بہت ہم آپ میرا میری",
    "vi": "và của là có các những cho trong được với không người một này khi từ để đã như về ra vào hay hoặc nào gì tại sao thế"
    " bao nhiêu ở đâu ai sẽ cũng đến nhiều thì mà bị bởi",
}  # fmt: skip

STOP_WORDS = {"en": frozenset(_ENGLISH.split())} | {
    language: frozenset(listed.split()) for language, listed in _OTHERS.items()
}
