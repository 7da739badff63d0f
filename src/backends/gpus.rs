//! The GPUs of this machine that models can run on, queried once.

use std::sync::OnceLock;

use cudarc::driver::{
    result::{self, DriverError, device},
    sys::{self, CUdevice_attribute as Attribute},
};

use troupe_base::config::MINIMUM_CAPABILITY;

/// Their numbers; `None` if this machine has no CUDA driver. Slow the first time on one that has.
pub fn usable() -> Option<&'static [i32]> {
    static FOUND: OnceLock<Option<Vec<i32>>> = OnceLock::new();
    FOUND.get_or_init(found).as_deref()
}

/// What the driver calls a GPU, as other tools print it: `GPU-` and the digits of its UUID. Slow
/// the first time on a machine that has one.
pub fn uuid(gpu: i32) -> Option<&'static str> {
    static FOUND: OnceLock<Vec<(i32, String)>> = OnceLock::new();
    let all = || usable().into_iter().flatten().filter_map(|it| Some((*it, read_uuid(*it)?)));
    let found = FOUND.get_or_init(|| all().collect());
    found.iter().find(|(it, _)| *it == gpu).map(|(_, uuid)| &**uuid)
}

fn read_uuid(gpu: i32) -> Option<String> {
    let uuid = device::get(gpu).and_then(device::get_uuid).ok()?;
    let hex: String = uuid.bytes.iter().map(|it| format!("{:02x}", *it as u8)).collect();
    let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    Some(format!("GPU-{}", parts.join("-")))
}

#[allow(unsafe_code, reason = "looks whether libcuda can be loaded")]
fn found() -> Option<Vec<i32>> {
    // SAFETY: loading libcuda runs nothing but its own constructors. Without it cudarc panics.
    if !unsafe { sys::is_culib_present() } {
        return None;
    }
    let gpus = all().unwrap_or_else(|error| {
        tracing::warn!("no GPU can be used: {error}");
        Vec::new()
    });
    if !gpus.is_empty() {
        tracing::info!("GPUs that models can run on: {gpus:?}");
    }
    Some(gpus)
}

/// Those that are new enough.
fn all() -> Result<Vec<i32>, DriverError> {
    result::init()?;
    let mut gpus = Vec::new();
    for gpu in 0..device::get_count()? {
        if MINIMUM_CAPABILITY <= capability(gpu)? {
            gpus.push(gpu);
        }
    }
    Ok(gpus)
}

/// The compute capability: 8.6, for example.
#[allow(unsafe_code, reason = "asks the driver about a device it has counted")]
fn capability(gpu: i32) -> Result<f64, DriverError> {
    let gpu = device::get(gpu)?;
    // SAFETY: the device comes from `device::get`, and both attributes are known to every driver.
    let [major, minor] = unsafe {
        [
            device::get_attribute(gpu, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            device::get_attribute(gpu, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ]
    };
    Ok(f64::from(major) + f64::from(minor) / 10.0)
}
