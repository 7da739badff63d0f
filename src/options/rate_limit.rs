//! The flags of the rate limiter: whether executions share resources, and how much there is of each.

use clap::Args;

/// Whether executions share resources, and how much there is.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Rate limits")]
pub struct RateLimitArguments {
    /// `execution_count`: an instance executes only while there is what its `rate_limiter` asks for;
    /// `off`: nobody looks at that
    #[arg(long, value_name = "off|execution_count", default_value = "off", value_parser = mode)]
    pub rate_limit: RateLimit,
    /// How much there is of a resource, on each device unless it says which; may be given more than
    /// once. Without it there is as much of each as one instance asks for at most
    #[arg(long, value_name = "NAME:COUNT[:DEVICE]", value_parser = resource)]
    pub rate_limit_resource: Vec<RateLimitResource>,
}

/// Which instance executes next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RateLimit {
    /// Whichever can.
    #[default]
    Off,
    /// Of those whose resources are there, the one that has executed least.
    ExecutionCount,
}

/// How much there is of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLimitResource {
    /// Its name.
    pub name: String,
    /// Units.
    pub count: u32,
    /// `None`: on each device.
    pub device: Option<i32>,
}

fn mode(text: &str) -> Result<RateLimit, String> {
    match &*text.to_ascii_lowercase() {
        "off" => Ok(RateLimit::Off),
        "execution_count" => Ok(RateLimit::ExecutionCount),
        _ => Err(format!(
            "invalid argument for --rate-limit: expected `off` or `execution_count`, got `{text}`"
        )),
    }
}

fn resource(text: &str) -> Result<RateLimitResource, String> {
    let read = || {
        let mut parts = text.split(':');
        let name = parts.next().filter(|it| !it.is_empty())?.to_owned();
        let count = parts.next()?.parse().ok()?;
        let device = match parts.next() {
            None => None,
            Some(device) => Some(device.parse().ok().filter(|it| 0 <= *it)?),
        };
        parts.next().is_none().then_some(RateLimitResource { name, count, device })
    };
    read().ok_or_else(|| {
        format!(
            "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or \
             '<resource_name>:<count>'. Got {text}"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_limited_by_executions_or_not_at_all() {
        for (text, expected) in [
            ("off", Some(RateLimit::Off)),
            ("OFF", Some(RateLimit::Off)),
            ("Execution_Count", Some(RateLimit::ExecutionCount)),
            ("on", None),
            ("", None),
        ] {
            assert_eq!(mode(text).ok(), expected, "{text}");
        }
        let problem = mode("on").unwrap_err();
        assert!(problem.starts_with("invalid argument for --rate-limit"), "{problem}");
    }

    #[test]
    fn a_resource_has_a_name_a_count_and_maybe_a_device() {
        let limit = |name: &str, count, device| {
            Ok(RateLimitResource { name: name.to_owned(), count, device })
        };
        for (text, expected) in [
            ("R:2", limit("R", 2, None)),
            ("R1:0:3", limit("R1", 0, Some(3))),
            ("a b:7", limit("a b", 7, None)),
        ] {
            assert_eq!(resource(text), expected, "{text}");
        }
        for text in
            ["", "R", "R:", ":1", "R:x", "R:-1", "R:1:", "R:1:-1", "R:1:2:3", "R:5000000000"]
        {
            let expected = format!(
                "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or \
                 '<resource_name>:<count>'. Got {text}"
            );
            assert_eq!(resource(text), Err(expected));
        }
    }
}
