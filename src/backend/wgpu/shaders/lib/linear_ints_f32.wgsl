// The same in floats, for devices on which packed integer products are emulated: integers below 2^24 are exact there, as
// sums of up to 2^24 / (2 x 127) products are.
alias Acc = f32;

fn four(codes: u32, q: u32) -> Acc {
    return dot(vec4<f32>(unpack4xU8(codes)), vec4<f32>(unpack4xI8(q)));
}
