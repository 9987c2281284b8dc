"""AsySQN: asynchronous stochastic quasi-Newton for linear models, party to party (Q. Zhang, B. Gu et al.; 2021).

    symbol                  here
    θ_i, θ_i^ℓ              `theta`, margins: wᵀx_i of the whole model, of one party's columns
    L(θ, y), H(θ, y), σ′    `Loss.value`, `.derivative`, `.second_derivative`
    λ/2·‖w‖²  (28)          `penalty`; λ is `l2`
    s, ȳ, ŷ, ρ  (12), (13)  the pairs of a `Memory`: step, curvature, damped curvature, 1/(sᵀŷ)
    γ_k, δ of Alg. 1        `Memory.gamma` (the scale of H_{k,0}⁻¹) and `delta`, its floor
    H_k v_k                 `Memory.direction`
    T1, T2 of Alg. 2        `aggregation_trees`: up the first goes Σ(θ+δ), up the second Σδ
    δ_ℓ of Alg. 2           `privacy.masking.masks`: uniform modulo 2⁶⁴, never used twice

Every party holds the labels, as the paper assumes, and no server takes part in training.
"""
