"""What fused attention kernels reached, as published: TFLOP/s by sequence length, head dim, mask and pass. Data only.

Conventions of the papers: forward 4 x batch x heads x query x keys x head_dim FLOPs, backward 2.5 times as many, half of that with a causal
mask. Batch x sequence = 16384 tokens and heads x head_dim = 2048 in the papers; batch 1, 64 query and 8 key-value heads in cudnn-frontend.

Sources, and how they were read:
    fa2     FlashAttention-2, arXiv:2307.08691v1, figures 4 and 5, A100 80GB SXM4: numbers over the bars, at second hand. Figures 4a and 4c
            from one copy each that says it was checked against the paper; 4b, 4d and 5 from one that calls itself approximate. Where only
            both passes together are printed, the row says `both`.
    fa3     FlashAttention-3, arXiv:2407.08608, figures 5 and 6, H100 80GB SXM5 (cuDNN 9, FlashAttention-2 and standard attention beside
            it): numbers over the bars, from machine transcriptions of the figures; FlashAttention-2's agree within 4 % with a run that
            its repository prints (pull request 2688: 295 308 312 310 forward, 239 264 280 299 backward, head dim 64, from 1k).
    cudnn   NVIDIA/cudnn-frontend, benchmark/sdpa_benchmark_training/results/{h200,gb200}_919_only_cudnn/llama3.1_*.csv (cuDNN 9.19, as
            torch 2.11 brings it). Read in the file. It begins at 2k.
    b200    NVIDIA/cudnn-frontend, benchmark/sdpa_benchmark_training/artifacts/sdpa_bf16_benchmark_results_NVIDIA_B200.csv, read in the
            file. Its 512 and 1k are of batch 1, too few blocks: here they fall from 2k as those of H100 do.
    derived not published: another row scaled, as the note says.
"""

from __future__ import annotations

from dataclasses import dataclass

SEQUENCES = (512, 1024, 2048, 4096, 8192, 16384)


@dataclass(frozen=True, slots=True)
class AttentionRow:
    """TFLOP/s at each of `SEQUENCES`. `passes`: `forward`, `backward`, or `both` where only their sum is known."""

    chip: str
    kernel: str
    passes: str
    causal: bool
    head_dim: int
    tflops: tuple[int, ...]
    source: str


def _row(chip: str, kernel: str, passes: str, causal: bool, head_dim: int, tflops: str, source: str) -> AttentionRow:
    return AttentionRow(chip, kernel, passes, causal, head_dim, tuple(int(x) for x in tflops.split()), source)


# Causal backward passes on H100 are not in fa3: its rows without a mask times the share that cuDNN 9.19 keeps under a causal mask (370/504,
# 474/560, 541/594, 579/612 at 2k to 16k; 0.50 and 0.62 at 512 and 1k continue that curve).
_NOTE = "derived: without mask x cuDNN's causal share"
ROWS = (
    _row("A100", "flash2", "forward", False, 64, "191 193 193 192 192 192", "fa2 figure 5a"),
    _row("A100", "flash2", "forward", False, 128, "221 226 227 222 224 223", "fa2 figure 5b"),
    _row("A100", "flash2", "forward", True, 64, "115 146 167 177 181 183", "fa2 figure 5c"),
    _row("A100", "flash2", "forward", True, 128, "132 164 187 198 200 197", "fa2 figure 5d"),
    _row("A100", "flash2", "both", False, 64, "132 153 162 171 175 176", "fa2 figure 4a"),
    _row("A100", "flash2", "both", False, 128, "150 172 187 196 201 203", "fa2 figure 4b"),
    _row("A100", "flash2", "both", True, 64, "88 119 140 156 165 171", "fa2 figure 4c"),
    _row("A100", "flash2", "both", True, 128, "99 133 155 173 182 189", "fa2 figure 4d"),
    _row("A100", "flash1", "both", False, 64, "91 92 104 108 110 110", "fa2 figure 4a"),
    _row("A100", "flash1", "both", True, 64, "58 70 77 87 92 97", "fa2 figure 4c"),
    _row("A100", "flash1", "both", False, 128, "75 86 94 98 100 101", "derived: flash2 / 2 (fa2 section 4.1: around 2x faster)"),
    _row("A100", "flash1", "both", True, 128, "50 67 78 87 91 95", "derived: flash2 / 2 (fa2 section 4.1: around 2x faster)"),
    _row("A100", "efficient", "both", False, 64, "68 73 76 77 75 75", "fa2 figure 4a, xformers cutlass, the kernel that torch has"),
    _row("A100", "efficient", "both", True, 64, "51 60 66 68 69 80", "fa2 figure 4c, xformers cutlass, the kernel that torch has"),
    _row("H100", "flash2", "forward", False, 64, "282 306 318 321 322 324", "fa3 figure 5"),
    _row("H100", "flash2", "forward", False, 128, "309 350 362 368 370 370", "fa3 figure 5"),
    _row("H100", "flash2", "forward", False, 256, "275 313 321 323 324 326", "fa3 figure 5"),
    _row("H100", "flash2", "forward", True, 64, "180 229 262 284 295 299", "fa3 figure 5"),
    _row("H100", "flash2", "forward", True, 128, "191 260 298 319 333 335", "fa3 figure 5"),
    _row("H100", "flash2", "forward", True, 256, "208 251 278 293 297 298", "fa3 figure 5"),
    _row("H100", "flash2", "backward", False, 64, "198 238 264 279 287 291", "fa3 figure 6"),
    _row("H100", "flash2", "backward", False, 128, "214 260 291 310 318 322", "fa3 figure 6"),
    _row("H100", "flash2", "backward", True, 64, "99 148 194 236 261 275", _NOTE),
    _row("H100", "flash2", "backward", True, 128, "107 161 214 262 290 305", _NOTE),
    _row("H100", "flash3", "forward", False, 64, "333 392 460 476 496 497", "fa3 figure 5"),
    _row("H100", "flash3", "forward", False, 128, "467 565 625 638 646 648", "fa3 figure 5"),
    _row("H100", "flash3", "forward", False, 256, "482 639 707 736 746 756", "fa3 figure 5"),
    _row("H100", "flash3", "forward", True, 64, "197 265 371 420 460 473", "fa3 figure 5"),
    _row("H100", "flash3", "forward", True, 128, "292 423 521 579 602 616", "fa3 figure 5"),
    _row("H100", "flash3", "forward", True, 256, "286 427 537 612 628 642", "fa3 figure 5"),
    _row("H100", "flash3", "backward", False, 64, "272 363 422 453 472 474", "fa3 figure 6"),
    _row("H100", "flash3", "backward", False, 128, "316 424 501 542 559 561", "fa3 figure 6"),
    _row("H100", "flash3", "backward", True, 64, "136 225 310 383 430 448", _NOTE),
    _row("H100", "flash3", "backward", True, 128, "158 263 368 459 509 531", _NOTE),
    _row("H100", "cudnn", "forward", False, 64, "335 373 395 408 412 413", "fa3 figure 5"),
    _row("H100", "cudnn", "forward", False, 128, "497 574 633 671 691 702", "cudnn, H200; 512 and 1k: fa3 figure 5"),
    _row("H100", "cudnn", "forward", False, 256, "470 546 580 581 580 581", "fa3 figure 5"),
    _row("H100", "cudnn", "forward", True, 64, "225 288 334 363 379 388", "fa3 figure 5"),
    _row("H100", "cudnn", "forward", True, 128, "315 410 484 591 644 673", "cudnn, H200; 512 and 1k: fa3 figure 5"),
    _row("H100", "cudnn", "forward", True, 256, "308 391 450 483 497 509", "fa3 figure 5"),
    _row("H100", "cudnn", "backward", False, 64, "266 348 395 417 432 433", "fa3 figure 6"),
    _row("H100", "cudnn", "backward", False, 128, "305 408 504 560 594 612", "cudnn, H200; 512 and 1k: fa3 figure 6"),
    _row("H100", "cudnn", "backward", True, 64, "133 216 290 353 393 410", _NOTE),
    _row("H100", "cudnn", "backward", True, 128, "152 253 370 474 541 579", "cudnn, H200; 512 and 1k: " + _NOTE),
    # GB200 x 1745 / 1822, the ratio of the two boards' best matmuls; 512 and 1k: as H100's cuDNN falls from 2k
    _row("B200", "cudnn", "forward", False, 128, "936 1081 1192 1526 1637 1694", "cudnn, GB200 x 0.958; 512 and 1k derived"),
    _row("B200", "cudnn", "forward", True, 128, "650 845 998 1279 1530 1616", "cudnn, GB200 x 0.958; 512 and 1k derived"),
    _row("B200", "cudnn", "backward", False, 128, "631 844 1043 1233 1349 1394", "cudnn, GB200 x 0.958; 512 and 1k derived"),
    _row("B200", "cudnn", "backward", True, 128, "329 548 801 1084 1256 1343", "cudnn, GB200 x 0.958; 512 and 1k derived"),
    _row("B200", "flash2", "forward", True, 128, "163 222 254 343 400 425", "b200; 512 and 1k derived"),
    _row("B200", "flash2", "backward", True, 128, "100 150 199 273 318 337", "b200; 512 and 1k derived"),
    _row("B200", "flash2", "forward", False, 128, "264 299 309 396 444 469", "derived: causal x H100 flash2's share"),
    _row("B200", "flash2", "backward", False, 128, "200 242 271 323 349 356", "derived: causal x H100 flash2's share"),
)  # fmt: skip
