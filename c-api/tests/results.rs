//! What a comment says of a function's results is what the code can give.

/// The codes that stand in a text.
fn codes(text: &str) -> std::collections::BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("XTIE_ERR_")).collect()
}

#[test]
fn every_result_of_a_connect_is_in_its_list() {
    let errors = include_str!("../src/errors.rs");
    let of_connect = errors.split("impl Explain for ConnectError").nth(1).unwrap();
    let given = codes(of_connect.split("fn explain").next().unwrap());
    let listener = include_str!("../src/listener.rs");
    let comment = listener.split("/// Connects to a listener").nth(1).unwrap();
    let listed = codes(comment.split("#[unsafe").next().unwrap());
    // of every function, and said once for all
    let general = ["XTIE_ERR_FORKED"];
    let missing: Vec<_> =
        given.difference(&listed).filter(|code| !general.contains(code)).collect();
    assert!(given.len() > 15 && missing.is_empty(), "{missing:?}");
}
