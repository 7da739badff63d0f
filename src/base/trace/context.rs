//! W3C trace context and baggage: the headers that say from server to server which trace a request
//! belongs to.

/// Bytes of `tracestate` and of `baggage` that are handed on with every call; longer values are
/// dropped.
const MAX_STATE_BYTES: usize = 512;
const MAX_BAGGAGE_BYTES: usize = 8192;

/// The client's own span, from `traceparent` and `tracestate`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RemoteParent {
    /// The trace the request belongs to.
    pub trace_id: u128,
    /// The client's span.
    pub span_id: u64,
    /// Whether the client samples the trace.
    pub is_sampled: bool,
    /// `tracestate` as it came: what other tracing systems keep of the trace.
    pub state: String,
}

/// What the headers of a request say about its trace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TraceContext {
    /// The client's span, if it has one.
    pub parent: Option<RemoteParent>,
    /// `baggage` as it came.
    pub baggage: String,
}

/// Reads a header by its name in lower case; several values are joined by commas.
pub type HeaderReader<'a> = &'a dyn Fn(&str) -> Option<String>;

impl TraceContext {
    /// Reads the headers or metadata; what is malformed is ignored.
    pub fn read(header: HeaderReader<'_>) -> TraceContext {
        let bounded =
            |name: &str, max_bytes: usize| header(name).filter(|value| value.len() <= max_bytes);
        let parent = header("traceparent").and_then(|it| RemoteParent::parse(&it)).map(|it| {
            RemoteParent { state: bounded("tracestate", MAX_STATE_BYTES).unwrap_or_default(), ..it }
        });
        TraceContext { parent, baggage: bounded("baggage", MAX_BAGGAGE_BYTES).unwrap_or_default() }
    }
}

impl RemoteParent {
    /// Parses `00-<32 hex digits>-<16>-<2>`; later versions may append more.
    pub fn parse(text: &str) -> Option<RemoteParent> {
        let text = text.trim();
        let mut parts = text.split('-');
        let mut part = |digits: usize| {
            let is_hex = |it: &&str| {
                it.len() == digits && it.bytes().all(|it| matches!(it, b'0'..=b'9' | b'a'..=b'f'))
            };
            parts.next().filter(is_hex)
        };
        let (version, trace, span, flags) = (part(2)?, part(32)?, part(16)?, part(2)?);
        let is_known = match version {
            "00" => parts.next().is_none(),
            version => version != "ff",
        };
        let trace_id = u128::from_str_radix(trace, 16).ok().filter(|it| *it != 0)?;
        let span_id = u64::from_str_radix(span, 16).ok().filter(|it| *it != 0)?;
        let is_sampled = u8::from_str_radix(flags, 16).ok()? & 1 == 1;
        is_known.then(|| RemoteParent { trace_id, span_id, is_sampled, state: String::new() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_parent_is_read_as_the_standard_says() {
        let parent = RemoteParent::parse(GOOD).unwrap();
        assert_eq!(parent.trace_id, 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c);
        assert_eq!((parent.span_id, parent.is_sampled), (0xb7ad_6b71_6920_3331, true));
        let unsampled = GOOD.replace("-01", "-00");
        assert!(!RemoteParent::parse(&unsampled).unwrap().is_sampled);
        let later = format!("{}-more", GOOD.replacen("00-", "cc-", 1));
        assert!(RemoteParent::parse(&later).is_some());
    }

    #[test]
    fn what_is_malformed_is_no_parent() {
        let zeros = "0".repeat(32);
        for wrong in [
            String::new(),
            "é".repeat(30),
            GOOD.replacen("00-", "ff-", 1),
            GOOD.to_uppercase(),
            format!("{GOOD}-more"),
            format!("{GOOD},{GOOD}"),
            GOOD.replace("0af7651916cd43dd8448eb211c80319c", &zeros),
            GOOD.replace("b7ad6b7169203331", &zeros[..16]),
            GOOD[..GOOD.len() - 1].to_owned(),
        ] {
            assert_eq!(RemoteParent::parse(&wrong), None, "{wrong}");
        }
    }

    #[test]
    fn lists_that_are_too_long_are_left_behind() {
        let header = |name: &str| match name {
            "traceparent" => Some(GOOD.to_owned()),
            "tracestate" => Some("a=1,b=2".to_owned()),
            _ => Some("x".repeat(MAX_BAGGAGE_BYTES + 1)),
        };
        let carried = TraceContext::read(&header);
        assert_eq!(carried.parent.unwrap().state, "a=1,b=2");
        assert_eq!(carried.baggage, "");
        assert_eq!(TraceContext::read(&|_| None), TraceContext::default());
    }
}
