//! All promises hold with all rules, and every rule is needed.

use hiloop_sim::rules::{Rule, Rules};
use hiloop_sim::scenario;

#[test]
fn all_scenarios_hold() {
    for scenario in scenario::ALL {
        let outcome = scenario.run(Rules::all());
        if let Some(failure) = outcome.failure {
            let trace: Vec<_> = failure.trace.iter().map(ToString::to_string).collect();
            panic!("{}: {}\n{}", scenario.name, failure.violation.0, trace.join("\n"));
        }
        assert!(outcome.ends > 0, "{} never comes to an end", scenario.name);
    }
}

#[test]
fn every_rule_is_needed() {
    for rule in Rule::ALL {
        let scenario = scenario::find(rule.scenario()).unwrap_or_else(|| panic!("{rule} names no scenario"));
        let outcome = scenario.run(Rules::all().without(*rule));
        let failure = outcome.failure.unwrap_or_else(|| panic!("{} holds without {rule} ({} states)", scenario.name, outcome.states));
        println!("without {rule} (section {}), {}: {}", rule.section(), scenario.name, failure.violation.0);
        for step in &failure.trace {
            println!("    {step}");
        }
        assert!(!failure.trace.is_empty(), "{rule}: broken at the start");
    }
}

#[test]
fn explorations_repeat() {
    let run = || scenario::find("fork-delete").unwrap().run(Rules::all().without(Rule::ForkReread));
    let (first, second) = (run(), run());
    assert_eq!((first.states, first.transitions), (second.states, second.transitions));
    assert_eq!(first.failure.unwrap().trace, second.failure.unwrap().trace);
}
