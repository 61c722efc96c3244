// Products of I2_S with int8 activations, exact: sum((code - 1) q) = sum(code q) - sum(q). Codes are multiplied as they are,
// and the row's sum of q comes off once.
alias Acc = i32;

fn four(codes: u32, q: u32) -> Acc {
    return dot4I8Packed(codes, q);
}
