"""The page where people compare answers, and the owner's view of how it goes: served from this machine, without a network behind it.

    server      sockets and the process; ``serve``
    guard       who may ask for what, before anything of the app runs: Host, token, origin, rate, size; headers of every response
    visitors    links, cookies, and whom they stand for
    app         the routes: a request to a response
    wire        items and judgements as the page knows them, without a name that tells where an answer is from
    body        JSON of strangers, read strictly
    limits      how often, how long
    owner       the owner's page: progress, agreement, speed
    templates, static   hand-written HTML, CSS and JavaScript; no build step, nothing from elsewhere

Needs the extra ``collect``. Imports no torch.
"""
