#!/usr/bin/env python3
"""peer.py -- PyTorch's side of `make bench`: the same models, weights, tokens and optimizer as ours, one step when asked.

    python peer.py step gpt2|llama MODE FILE BATCH SEQ THREADS      MODE: fp32, bf16-autocast, bf16-pure
    python peer.py attention THREADS

FILE is written by ours.lua: weights, tokens and sizes. Commands come on standard input, answers are JSON lines.
step: "step" does one training step, "end" says the peak of resident memory and ends.
attention: "load FILE" reads q, k, v, dy and our results and compares; "run" times forward and backward.

fp32           everything float32
bf16-autocast  float32 weights, products in bfloat16 through torch.autocast
bf16-pure      bfloat16 weights, activations and gradients; AdamW on float32 masters that are copied back
Attention is scaled_dot_product_attention, the loss is taken on float32 logits, AdamW is the fused one.
"""
import json, math, resource, struct, sys, time
import torch, torch.nn as nn, torch.nn.functional as F

DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "I32": torch.int32, "I64": torch.int64}


class Tensors:
    """Tensors of a safetensors file, each read when asked for."""

    def __init__(self, path):
        self.file = open(path, "rb")
        n = struct.unpack("<Q", self.file.read(8))[0]
        self.header = json.loads(self.file.read(n))
        self.meta = self.header.pop("__metadata__", {})
        self.start = 8 + n

    def __getitem__(self, name):
        e = self.header[name]
        lo, hi = e["data_offsets"]
        self.file.seek(self.start + lo)
        data = bytearray(self.file.read(hi - lo))
        return torch.frombuffer(data, dtype=DTYPES[e["dtype"]]).view(e["shape"])


class GPT2Block(nn.Module):
    def __init__(self, c, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(c), nn.LayerNorm(c)
        self.c_attn, self.c_proj = nn.Linear(c, 3 * c), nn.Linear(c, c)
        self.c_fc, self.mlp_proj = nn.Linear(c, 4 * c), nn.Linear(4 * c, c)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (z.view(b, t, self.heads, c // self.heads).transpose(1, 2)
                   for z in self.c_attn(self.ln_1(x)).split(c, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self, o):
        super().__init__()
        c = o["n_embd"]
        self.wte, self.wpe = nn.Embedding(o["vocab_size"], c), nn.Embedding(o["n_ctx"], c)
        self.h = nn.ModuleList(GPT2Block(c, o["n_head"]) for _ in range(o["n_layer"]))
        self.ln_f = nn.LayerNorm(c)

    def load(self, t):
        put = lambda p, name, turned=False: p.data.copy_(t[name].t() if turned else t[name])
        put(self.wte.weight, "wte.weight"), put(self.wpe.weight, "wpe.weight")
        for i, b in enumerate(self.h):
            for ours, m in (("attn.c_attn", b.c_attn), ("attn.c_proj", b.c_proj), ("mlp.c_fc", b.c_fc),
                            ("mlp.c_proj", b.mlp_proj), ("ln_1", b.ln_1), ("ln_2", b.ln_2)):
                put(m.weight, f"h.{i}.{ours}.weight", not ours.startswith("ln"))
                put(m.bias, f"h.{i}.{ours}.bias")
        put(self.ln_f.weight, "ln_f.weight"), put(self.ln_f.bias, "ln_f.bias")

    def forward(self, x):
        h = self.wte(x) + self.wpe(torch.arange(x.size(1)))
        for b in self.h:
            h = b(h)
        return F.linear(self.ln_f(h), self.wte.weight)


def turn(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), dim=-1) * sin


class LlamaBlock(nn.Module):
    def __init__(self, o):
        super().__init__()
        c, self.heads, self.kv_heads = o["n_embd"], o["n_head"], o["n_kv_head"]
        d, n, bias = c // self.heads, o["n_inner"], False
        self.input_layernorm = nn.RMSNorm(c, eps=o["norm_eps"])
        self.post_attention_layernorm = nn.RMSNorm(c, eps=o["norm_eps"])
        self.q_proj, self.k_proj = nn.Linear(c, self.heads * d, bias), nn.Linear(c, self.kv_heads * d, bias)
        self.v_proj, self.o_proj = nn.Linear(c, self.kv_heads * d, bias), nn.Linear(self.heads * d, c, bias)
        self.gate_proj, self.up_proj, self.down_proj = nn.Linear(c, n, bias), nn.Linear(c, n, bias), nn.Linear(n, c, bias)

    def forward(self, x, cos, sin):
        b, t, c = x.shape
        n = self.input_layernorm(x)
        q, k, v = (p(n).view(b, t, heads, -1).transpose(1, 2)
                   for p, heads in ((self.q_proj, self.heads), (self.k_proj, self.kv_heads), (self.v_proj, self.kv_heads)))
        q, k = turn(q, cos.to(q.dtype), sin.to(q.dtype)), turn(k, cos.to(k.dtype), sin.to(k.dtype))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads)
        x = x + self.o_proj(y.transpose(1, 2).reshape(b, t, c))
        n = self.post_attention_layernorm(x)
        return x + self.down_proj(F.silu(self.gate_proj(n)) * self.up_proj(n))


class Llama(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.o = o
        self.embed_tokens = nn.Embedding(o["vocab_size"], o["n_embd"])
        self.layers = nn.ModuleList(LlamaBlock(o) for _ in range(o["n_layer"]))
        self.norm = nn.RMSNorm(o["n_embd"], eps=o["norm_eps"])
        self.lm_head = nn.Linear(o["n_embd"], o["vocab_size"], bias=False)

    def load(self, t):
        for name, p in self.named_parameters():
            parts = name.split(".")
            if parts[0] == "layers" and parts[2][:2] in ("q_", "k_", "v_", "o_"):
                parts.insert(2, "self_attn")
            elif parts[0] == "layers" and parts[2].endswith("_proj"):
                parts.insert(2, "mlp")
            p.data.copy_(t[".".join(parts)])

    def forward(self, x):
        d = self.o["n_embd"] // self.o["n_head"]
        angle = torch.outer(torch.arange(x.size(1)).float(), self.o["rope_theta"] ** -(torch.arange(0, d, 2).float() / d))
        angle = torch.cat((angle, angle), dim=-1)
        cos, sin = angle.cos(), angle.sin()
        h = self.embed_tokens(x)
        for b in self.layers:
            h = b(h, cos, sin)
        return self.lm_head(self.norm(h))


def answer(**values):
    print(json.dumps(values), flush=True)


def page_faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


class Trainer:
    def __init__(self, kind, mode, path, batch, seq):
        t = Tensors(path)
        model = (GPT2 if kind == "gpt2" else Llama)(json.loads(t.meta["options"]))
        model.load(t)
        self.model, self.pure, self.mode, self.i = model, mode == "bf16-pure", mode, 0
        self.tokens = t[f"tokens.{batch}x{seq}"].long()
        self.params = self.master = list(model.parameters())
        if self.pure:
            self.master = [p.detach().clone().requires_grad_() for p in self.params]
            model.bfloat16()
            self.params = list(model.parameters())
            for m in self.master:
                m.grad = torch.zeros_like(m)
        a = json.loads(t.meta["adamw"])
        self.opt = torch.optim.AdamW(self.master, lr=a["lr"], betas=a["betas"], eps=a["eps"],
                                     weight_decay=a["weight_decay"], fused=True)

    def update(self):
        if not self.pure:
            self.opt.step()
            self.opt.zero_grad(set_to_none=True)
            return
        torch._foreach_copy_([m.grad for m in self.master], [p.grad for p in self.params])
        self.opt.step()
        with torch.no_grad():
            torch._foreach_copy_(self.params, self.master)
        for p in self.params:
            p.grad = None

    def step(self):
        d = self.tokens[self.i % len(self.tokens)]
        x, y = d[:, :-1].contiguous(), d[:, 1:].contiguous()
        self.i += 1
        faults, start = page_faults(), time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=self.mode == "bf16-autocast"):
            logits = self.model(x).flatten(0, 1)
            loss = F.cross_entropy(logits.float(), y.flatten())
        loss.backward()
        del logits
        self.update()
        value = loss.item()
        answer(s=time.perf_counter() - start, loss=value, faults=page_faults() - faults)


class Attention:
    def load(self, path):
        t = Tensors(path)
        self.q, self.k, self.v = (t[n].requires_grad_() for n in "qkv")
        self.dy = t["dy"]
        self.run()
        wrong = lambda a, b: ((a.float() - b.float()).norm() / b.float().norm()).item()
        answer(err=max(wrong(self.y, t["y"]), wrong(self.q.grad, t["dq"]), wrong(self.k.grad, t["dk"]),
                       wrong(self.v.grad, t["dv"])))

    def run(self):
        self.q.grad = self.k.grad = self.v.grad = None
        start = time.perf_counter()
        y = F.scaled_dot_product_attention(self.q, self.k, self.v, is_causal=True,
                                           enable_gqa=self.q.size(1) != self.k.size(1))
        middle = time.perf_counter()
        y.backward(self.dy)
        end = time.perf_counter()
        self.y = y.detach()
        return middle - start, end - middle


def main():
    torch.set_num_threads(int(sys.argv[-1]))
    work = Trainer(*sys.argv[2:5], int(sys.argv[5]), int(sys.argv[6])) if sys.argv[1] == "step" else Attention()
    answer(ready=True, torch=torch.__version__, threads=torch.get_num_threads())
    for line in sys.stdin:
        word, _, rest = line.strip().partition(" ")
        if word == "step":
            work.step()
        elif word == "load":
            work.load(rest)
        elif word == "run":
            forward, backward = work.run()
            answer(forward=forward, backward=backward)
        elif word == "end":
            answer(rss=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
            return


if __name__ == "__main__":
    main()
