//! The status as JSON, against what is written of it: docs/status.schema.json, and
//! the table of docs/metrics.md. Asked while a copy runs, with an error to tell and
//! a port that is down, so that every list has something in it.

use crate::Watched;
use crate::prometheus::root;
use serde_json::Value;
use std::fs;
use std::time::Duration;
use verbatim_tests::http::get;
use verbatim_tests::process::{Running, Text, wait_for};

/// How long the status may take to have something in every list.
const FULL_MAX: Duration = Duration::from_secs(30);

/// What a status must have something of.
const LISTS: [&str; 6] = [
    "/exports/0",
    "/sessions/0/files/0",
    "/throughput/tcp/read/0",
    "/devices/1",
    "/findings/0",
    "/errors/0",
];

#[test]
fn the_status_is_what_its_schema_says() {
    let watched = Watched::start();
    watched.make("data/big", 24 << 20);
    let big = watched.text("data/big");
    watched.home.cp(&[&big, &watched.at("data/new")]).refused(1, &["read-only"]);
    let slow = ["-q", "--bwlimit", "1M", &big, &watched.at("in")];
    let copy = Running::start(watched.home.command("rdma-cp", &slow));
    let status = wait_for("every list of the status has something in it", FULL_MAX, || {
        let status = get(watched.metrics, "/api/v1/status").body;
        let status: Value = serde_json::from_str(&status).expect("JSON");
        let lacks = |list: &&&str| status.pointer(list).is_none();
        let lacking: Vec<_> = LISTS.iter().filter(lacks).collect();
        match lacking.is_empty() {
            true => Ok(status),
            false => Err(Text(format!("no {lacking:?} in {status:#}"))),
        }
    });
    drop(copy);
    let schema = fs::read_to_string(root().join("docs/status.schema.json")).expect("the schema");
    let schema: Value = serde_json::from_str(&schema).expect("JSON");
    let mut wrong = Vec::new();
    check(&schema, &schema, &status, "status", &mut wrong);
    assert_eq!(wrong, [""; 0], "{status:#}");

    let docs = fs::read_to_string(root().join("docs/metrics.md")).expect("the docs");
    let table = docs.split("## Status").nth(1).expect("a section");
    let mut names = Vec::new();
    name_all(&schema, &mut names);
    names.retain(|name| {
        ![format!("`{name}`"), format!("`{name}[]`")].iter().any(|it| table.contains(it))
    });
    assert_eq!(names, [""; 0], "docs/metrics.md does not say what these are");
}

/// Compares a value with a schema: the words of JSON Schema that ours uses, and no field that it
/// does not name.
fn check(all: &Value, schema: &Value, value: &Value, at: &str, wrong: &mut Vec<String>) {
    if let Some(name) = schema["$ref"].as_str() {
        let there = all.pointer(name.trim_start_matches('#')).expect("it is defined");
        return check(all, there, value, at, wrong);
    }
    let types = match &schema["type"] {
        Value::Array(types) => types.clone(),
        Value::Null => Vec::new(),
        one => vec![one.clone()],
    };
    let is = |name: &Value| match name.as_str().expect("a type has a name") {
        "string" => value.is_string(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "null" => value.is_null(),
        other => panic!("no type {other}"),
    };
    let one_of = schema["enum"].as_array();
    let fits = types.iter().any(is) || one_of.is_some_and(|values| values.contains(value));
    if !fits {
        wrong.push(format!("{at} is {value}"));
    }
    let properties = schema["properties"].as_object();
    for (name, value) in value.as_object().into_iter().flatten() {
        match properties.and_then(|properties| properties.get(name)) {
            Some(schema) => check(all, schema, value, &format!("{at}.{name}"), wrong),
            None => wrong.push(format!("{at}.{name} is not in the schema")),
        }
    }
    for name in schema["required"].as_array().into_iter().flatten() {
        if value.get(name.as_str().expect("a name")).is_none() {
            wrong.push(format!("{at} has no {name}"));
        }
    }
    for (index, value) in value.as_array().into_iter().flatten().enumerate() {
        check(all, &schema["items"], value, &format!("{at}[{index}]"), wrong);
    }
}

/// The names of all fields there are.
fn name_all(schema: &Value, names: &mut Vec<String>) {
    for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
        names.push(name.clone());
        name_all(schema, names);
    }
    for inner in ["/items", "/$defs/rates"] {
        schema.pointer(inner).into_iter().for_each(|schema| name_all(schema, names));
    }
}
