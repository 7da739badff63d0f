//! The floats of 16 bits, which Rust does not have yet.

/// The nearest FP16, of two equally near the even one; infinite when it is out of range.
pub(super) fn to_fp16(value: f32) -> u16 {
    let bits = value.to_bits();
    let (sign, size) = ((bits >> 16) as u16 & 0x8000, bits & 0x7fff_ffff);
    let size = match size {
        0x7f80_0001.. => 0x7e00,
        0x4780_0000.. => 0x7c00,
        // The exponent loses 112, the fraction 13 bits; a carry is an exponent one larger.
        0x3880_0000.. => ((size - 0x3800_0000 + 0xfff + ((size >> 13) & 1)) >> 13) as u16,
        // Below 2^-14 it counts in steps of 2^-24.
        _ => (f32::from_bits(size) * 16_777_216.0).round_ties_even() as u16,
    };
    sign | size
}

/// Every FP16 is an FP32.
pub(super) fn from_fp16(bits: u16) -> f32 {
    let fraction = f32::from(bits & 0x3ff);
    let size = match (bits >> 10) & 0x1f {
        0 => fraction / 16_777_216.0,
        0x1f if fraction == 0.0 => f32::INFINITY,
        0x1f => f32::NAN,
        exponent => (1.0 + fraction / 1024.0) * f32::powi(2.0, i32::from(exponent) - 15),
    };
    if bits & 0x8000 == 0 { size } else { -size }
}

/// The nearest BF16, of two equally near the even one.
pub(super) fn to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

/// Every BF16 is an FP32.
pub(super) fn from_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_rounded_to_the_nearest() {
        for (value, fp16, bf16) in [
            (0.0, 0, 0),
            (-0.0, 0x8000, 0x8000),
            (1.0, 0x3c00, 0x3f80),
            (-2.5, 0xc100, 0xc020),
            (65504.0, 0x7bff, 0x4780),
            (65519.0, 0x7bff, 0x4780),
            (65520.0, 0x7c00, 0x4780),
            (1e9, 0x7c00, 0x4e6e),
            (f32::NEG_INFINITY, 0xfc00, 0xff80),
            (1.000_488_3, 0x3c00, 0x3f80),
            (1.001_464_8, 0x3c02, 0x3f80),
            (5.960_464_5e-8, 1, 0x3380),
            (2e-8, 0, 0x32ac),
            (6.1e-5, 0x3ff, 0x3880),
            (6.103_515_6e-5, 0x400, 0x3880),
        ] {
            assert_eq!((to_fp16(value), to_bf16(value)), (fp16, bf16), "{value}");
        }
        assert!(from_fp16(to_fp16(f32::NAN)).is_nan() && from_bf16(to_bf16(f32::NAN)).is_nan());
    }

    #[test]
    fn all_of_them_survive_the_way_there_and_back() {
        for bits in 0..=u16::MAX {
            let (fp16, bf16) = (from_fp16(bits), from_bf16(bits));
            assert!(fp16.is_nan() || to_fp16(fp16) == bits, "{bits:x}");
            assert!(bf16.is_nan() || to_bf16(bf16) == bits, "{bits:x}");
        }
    }
}
