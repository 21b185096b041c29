//! Which request gets which fault.

use hyper::header::{IF_MATCH, IF_NONE_MATCH};
use hyper::{HeaderMap, Method};
use parking_lot::Mutex;

use crate::plan::{Plan, Rule};
use crate::shape::Chance;
use crate::stats::RuleState;

/// The plan in force and how far its rules have got.
#[derive(Default)]
pub(crate) struct Rules(Mutex<Armed>);

#[derive(Default)]
struct Armed {
    generation: u64,
    plan: Plan,
    /// Of each rule: requests that fitted, and how often it fired.
    progress: Vec<(u64, u64)>,
}

/// A rule that fired for one request.
#[derive(Clone)]
pub(crate) struct Hit {
    pub(crate) rule: Rule,
    index: usize,
    generation: u64,
}

impl Rules {
    pub(crate) fn replace(&self, plan: Plan) {
        let mut armed = self.0.lock();
        armed.generation += 1;
        armed.progress = vec![(0, 0); plan.rules.len()];
        armed.plan = plan;
    }

    pub(crate) fn plan(&self) -> Plan {
        self.0.lock().plan.clone()
    }

    pub(crate) fn state(&self) -> Vec<RuleState> {
        let armed = self.0.lock();
        armed.plan.rules.iter().zip(&armed.progress).map(|(r, p)| RuleState { fault: r.fault, fitted: p.0, fired: p.1 }).collect()
    }

    /// The first rule that fires for this request.
    pub(crate) fn pick(&self, method: &Method, path: &str, headers: &HeaderMap, chance: &Chance) -> Option<Hit> {
        let conditional = headers.contains_key(IF_MATCH) || headers.contains_key(IF_NONE_MATCH);
        let mut armed = self.0.lock();
        let Armed { generation, plan, progress } = &mut *armed;
        for (index, (rule, (fitted, fired))) in plan.rules.iter().zip(progress).enumerate() {
            let fits = (rule.methods.is_empty() || rule.methods.iter().any(|m| m == method.as_str()))
                && path.starts_with(&rule.path_prefix)
                && rule.conditional.is_none_or(|c| c == conditional)
                && (!rule.fault.needs_body() || method == Method::GET);
            if !fits {
                continue;
            }
            *fitted += 1;
            if *fitted <= rule.skip || rule.count.is_some_and(|most| *fired >= most) || !chance.happens(rule.probability) {
                continue;
            }
            *fired += 1;
            return Some(Hit { rule: rule.clone(), index, generation: *generation });
        }
        None
    }

    /// The fault could not happen to this answer: it stays due.
    pub(crate) fn give_back(&self, hit: &Hit) {
        let mut armed = self.0.lock();
        if armed.generation == hit.generation {
            armed.progress[hit.index].1 -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Fault;

    fn picks(rule: Rule, requests: u64) -> Vec<bool> {
        let rules = Rules::default();
        rules.replace(Plan { rules: vec![rule], ..Plan::default() });
        let chance = Chance::new(7);
        (0..requests).map(|_| rules.pick(&Method::PUT, "/b/k", &HeaderMap::new(), &chance).is_some()).collect()
    }

    #[test]
    fn skip_and_count_are_exact() {
        assert_eq!(picks(Rule { skip: 1, count: Some(2), ..Rule::new(Fault::SlowDown) }, 5), [false, true, true, false, false]);
    }

    #[test]
    fn a_chance_is_seeded() {
        let half = || Rule { probability: 0.5, ..Rule::new(Fault::Stall) };
        let first = picks(half(), 400);
        assert_eq!(first, picks(half(), 400));
        let fired = first.iter().filter(|f| **f).count();
        assert!((120..280).contains(&fired), "{fired} of 400");
    }

    #[test]
    fn a_rule_fits_by_method_path_and_condition() {
        let rules = Rules::default();
        let rule = Rule {
            methods: vec!["PUT".into()],
            path_prefix: "/b/heads/".into(),
            conditional: Some(true),
            ..Rule::new(Fault::ErrorApplied)
        };
        rules.replace(Plan { rules: vec![rule], ..Plan::default() });
        let (chance, plain, mut with) = (Chance::new(1), HeaderMap::new(), HeaderMap::new());
        with.insert(IF_MATCH, "\"x\"".parse().unwrap());
        let fires = |m, p, h| rules.pick(&m, p, h, &chance).is_some();
        assert!(fires(Method::PUT, "/b/heads/w", &with));
        assert!(!fires(Method::PUT, "/b/heads/w", &plain));
        assert!(!fires(Method::PUT, "/b/packs/w", &with));
        assert!(!fires(Method::GET, "/b/heads/w", &with));
        assert_eq!((rules.state()[0].fitted, rules.state()[0].fired), (1, 1));
    }

    #[test]
    fn what_did_not_happen_stays_due() {
        let rules = Rules::default();
        let plan = Plan { rules: vec![Rule { count: Some(1), ..Rule::new(Fault::ErrorApplied) }], ..Plan::default() };
        rules.replace(plan.clone());
        let chance = Chance::new(1);
        let pick = || rules.pick(&Method::PUT, "/", &HeaderMap::new(), &chance);
        let hit = pick().unwrap();
        assert!(pick().is_none());
        rules.give_back(&hit);
        assert!(pick().is_some());
        // An answer to a request of an older plan changes nothing.
        rules.replace(plan);
        rules.give_back(&hit);
        assert_eq!(rules.state()[0].fired, 0);
    }
}
