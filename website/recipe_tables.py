"""Tables of the two recipes: memory of very many classes, and photographs with wrong labels."""

from website.tables import score, stored, table


def class_memory() -> str:
    """Bytes of proxies, gradient and moments at D = 512, by classes and GPUs."""
    D = 512
    bytes_of = {
        "`torch.optim.AdamW`": 16.0,
        "`ProxyAdamW`": 12.0,
        "`ProxyAdamW`, `moments=torch.bfloat16`": 8.0,
        "`ProxyAdamW`, `moments=torch.bfloat16`, proxies in bfloat16": 6.0,
        "`ProxyAdagrad`": 4 + 4 / D,
        "`ProxyAdagrad`, proxies in bfloat16": 2 + 4 / D,
    }
    columns = [("10⁶ classes, one GPU", 10**6, 1), ("10⁷ classes, one GPU", 10**7, 1)]
    columns += [("10⁷, each of 8 GPUs", 10**7, 8), ("10⁸, each of 8 GPUs", 10**8, 8)]
    rows = [
        [name, f"{each:.3g}", *(f"{each * C * D / W / 1e9:.3g} GB" for _, C, W in columns)]
        for name, each in bytes_of.items()
    ]
    return table(["", "bytes an element", *(title for title, *_ in columns)], rows)


def photographs_found() -> str:
    """Wrong labels of photographs found by the audit and by cleanlab."""
    study, rows = stored("photographs"), []
    for place, noise in enumerate(study["noises"]):
        for tool in study["results"]["found"]:
            found, right, f1 = (study["results"][name][tool][place] for name in ("found", "right ones", "f1"))
            figures = ["–", f"{right:.1%}", "–"] if noise == "none" else [f"{found:.0%}", f"{right:.1%}", score(f1)]
            rows.append([f"`{noise}`", tool, *figures])
    return table(["wrong labels", "", "wrong ones found", "right ones called wrong", "F1"], rows)


def photographs_trained() -> str:
    """Recall@1 and MAP@R of unseen things, by what was done about wrong labels."""
    study = stored("photographs")
    metrics = [study["results"][name] for name in ("Recall@1", "MAP@R")]
    rows = (
        [
            row,
            *(f"{score(one)}, {score(other)}" for one, other in zip(*(metric[row] for metric in metrics), strict=True)),
        ]
        for row in metrics[0]
    )
    return table(["Recall@1, MAP@R", *(f"`{noise}`" for noise in study["noises"])], rows)
