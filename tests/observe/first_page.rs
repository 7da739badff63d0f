//! The first page and the others as different eyes and hands meet them: phones, dark rooms, keyboards.

use serde_json::json;
use troupe_proto::inference::{ModelInferRequest, model_infer_request::InferInputTensor};

use super::workbench::{fill, send};
use crate::support::{Repository, Server, browser::Browser, grpc::Grpc, http::floats, native};

const SHAPE: &str = "x:FP32[-1] text:BYTES[-1] -> y:FP32[-1] z:BYTES[-1]";

/// Sixteen models, one of them with a very long name, an ensemble, and one that does not load.
fn many() -> Repository {
    let models = (0..14).map(|it| (format!("model_{it}"), native("identity", SHAPE)));
    let long = format!("a_{}", "very_".repeat(40));
    let chain = crate::support::ensemble(
        "x:FP32[-1] text:BYTES[-1] -> y:FP32[-1] z:BYTES[-1]",
        &["model_1: x=x text=text -> y=y z=z"],
    );
    Repository::of(models)
        .with(&long, native("identity", SHAPE))
        .with("chain", chain)
        .with("late", native("<b>no_such_op</b>", "x:FP32[1] -> y:FP32[1]"))
}

#[test]
fn the_first_page_says_what_is_broken_and_finds_models_by_name() {
    let Some(browser) = Browser::open((1200, 1000), true) else { return };
    let server = Server::lenient(many());
    browser.go(&server.metrics, "/");
    browser.says("#status", "live");
    let told = browser.text(".notice");
    assert!(
        told.starts_with("late is not served: ") && told.contains("<b>no_such_op</b>"),
        "{told}"
    );
    let shown = "return [...document.querySelectorAll('[data-model]')].filter(it => \
                 it.getClientRects().length).map(it => it.dataset.model)";
    browser.press("#filter", "MODEL_13");
    assert_eq!(browser.run(shown), json!(["model_13"]));
    assert_eq!(browser.text("#filtered"), "1 of 17");
    // A failure is seen in the row, and the filter stays when models change.
    server.infer("model_13", &floats(&[("x", &[1.0])])).refuses(400, "");
    browser.says_of(
        "tr[data-model=model_13] .errors",
        "it.className",
        &json!("number errors failing"),
    );
    fill(&browser, "#filter", "");
    browser.run(
        "document.getElementById('filter').dispatchEvent(new Event('input', {bubbles: true}))",
    );
    browser.click("article[data-model=chain] .to-try");
    browser.says_of("#try", "it.getBoundingClientRect().top < innerHeight", &json!(true));
    browser.go(&server.metrics, "/");
    browser.click(".notice a");
    browser.says("h1", "late");
    assert!(browser.text("main").contains("<b>no_such_op</b>"));
}

#[test]
fn requests_that_are_refused_at_the_door_stand_on_the_page_of_their_model() {
    let server = Server::start(Repository::of([("same", native("identity", SHAPE))]));
    server.http.post("/v2/models/same/infer", "{\"inputs\": [").refuses(400, "parse");
    let unknown = floats(&[("nope", &[1.0])]);
    for _ in 0..2 {
        server.infer("same", &unknown).refuses(400, "unexpected inference input 'nope'");
    }
    server.http.post("/v2/models/same/generate", "[1]").refuses(400, "");
    let mut grpc = Grpc::connect(server.grpc);
    let request = ModelInferRequest {
        model_name: "same".to_owned(),
        inputs: vec![InferInputTensor { name: "over_grpc".to_owned(), ..Default::default() }],
        ..Default::default()
    };
    assert!(grpc.call(async |it| it.model_infer(request).await).is_err());
    let page = server.metrics.get("/model/same").ok().text();
    let (_, failures) = page.split_once("id=\"failures\"").unwrap();
    for part in ["EOF while parsing", "&#39;nope&#39;", ", 2 times in a row, refused", "over_grpc"]
    {
        assert!(failures.contains(part), "no {part} in {failures}");
    }
    // Nor does it count them: the model never had them.
    assert_eq!(failures.matches("not counted").count(), 4, "{failures}");
    assert!(page.contains("id=\"s-errors\" class=\"errors\">0<"), "{page}");
}

#[test]
fn a_server_without_models_says_how_to_make_one() {
    let server = Server::start(Repository::new());
    let page = server.metrics.get("/").ok().text();
    assert!(page.contains("<code>troupe new model hello</code>"), "{page}");
}

#[test]
fn pages_fit_a_narrow_phone() {
    let Some(browser) = Browser::open((600, 900), true) else { return };
    let server = Server::lenient(many());
    browser.screen((390, 844), false);
    let wide = "return [document.documentElement.scrollWidth, [...document.querySelectorAll('main *')]\
                .filter(it => 390 < it.getBoundingClientRect().right && !it.closest('.scroll, pre, svg'))\
                .map(it => it.outerHTML.slice(0, 80))]";
    let long = format!("/model/a_{}", "very_".repeat(40));
    for path in ["/", "/ensemble/chain", "/model/late", &long] {
        browser.go(&server.metrics, path);
        assert_eq!(browser.run(wide), json!([390, []]), "{path}");
    }
    fill(&browser, "#try textarea", "random");
    fill(&browser, "#try .shape", "300");
    fill(&browser, "[data-name=text] textarea", &"word".repeat(200));
    send(&browser);
    assert_eq!(browser.run(wide), json!([390, []]), "with an answer");
}

/// Texts whose colour is too near to that behind them, by the rule of WCAG 2 for small letters.
const FAINT: &str = "
    const channels = (it) => it.match(/[\\d.]+/g).map(Number);
    const light = (it) => {
      const [r, g, b] = it.slice(0, 3).map((it) => it / 255).map((it) => (it <= 0.04045 ? it / 12.92 : ((it + 0.055) / 1.055) ** 2.4));
      return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = (it) => {
      for (; it; it = it.parentElement) {
        const color = channels(getComputedStyle(it).backgroundColor);
        if (color.length === 3 || color[3] === 1) return color;
      }
      return [255, 255, 255];
    };
    const own = (it) => [...it.childNodes].some((it) => it.nodeType === 3 && it.data.trim());
    const seen = [...document.querySelectorAll('body *')].filter((it) => own(it) && it.getClientRects().length && !it.closest('svg'));
    const faint = seen.filter((it) => {
      const [one, other] = [light(channels(getComputedStyle(it).color)), light(behind(it))];
      return (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05) < 4.5;
    });
    return [3 < seen.length, faint.map((it) => it.outerHTML.slice(0, 120))];";

#[test]
fn texts_stand_out_and_every_control_has_a_name_in_light_and_in_the_dark() {
    let Some(browser) = Browser::open((1200, 1000), true) else { return };
    let server = Server::lenient(many());
    server.infer("chain", &floats(&[("x", &[1.0])])).refuses(400, "");
    let nameless = "return [...document.querySelectorAll('a, button, input, textarea')].filter(it => \
                    !it.ariaLabel && !it.labels?.length && !it.textContent.trim()).map(it => it.outerHTML)";
    for is_dark in [false, true] {
        browser.screen((1200, 1000), is_dark);
        for path in ["/", "/ensemble/chain", "/model/late", "/docs"] {
            browser.go(&server.metrics, path);
            if path == "/ensemble/chain" {
                send(&browser);
                browser.run(
                    "document.querySelectorAll('#try .wrong').forEach(it => it.textContent = 'x')",
                );
            }
            assert_eq!(browser.run(FAINT), json!([true, []]), "{path}, dark: {is_dark}");
            assert_eq!(browser.run(nameless), json!([]), "{path}");
        }
    }
}

#[test]
fn a_form_is_filled_in_and_sent_by_the_keyboard() {
    let Some(browser) = Browser::open((1200, 1000), true) else { return };
    let server = Server::start(Repository::of([("same", native("identity", SHAPE))]));
    browser.go(&server.metrics, "/model/same");
    // Control and Enter where one writes.
    browser.press("[data-name=x] textarea", "\u{e009}\u{e007}");
    browser.says("#try-answer .answer td", "1");
    // From the last field to the button by Tab, and Enter there.
    browser.run("document.querySelector('#try-parameters').focus()");
    browser.press("#try-parameters", "\u{e004}");
    assert_eq!(browser.run("return document.activeElement.type"), "submit");
    fill(&browser, "[data-name=x] textarea", "[5]");
    browser.press("#try [type=submit]", "\u{e007}");
    browser.says("#try-answer .answer td", "5");
}
