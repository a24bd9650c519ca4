//! The tree of descriptors that envoyproxy/ratelimit matches, and where policies, which are no tree, would differ from it.

use tollgate::{Entry, Value};

/// A node of the tree.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) line: usize,
    pub(super) entry: Entry,
    /// Whether all values that fit share one count.
    pub(super) shared: bool,
    pub(super) limit: Option<Limit>,
    pub(super) shadow: bool,
    pub(super) children: Vec<Node>,
}

/// What a node allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Limit {
    /// So many, each so long, in the words of a quota.
    Quota(String),
    /// Everything.
    Unlimited,
    /// Nothing.
    Nothing,
}

/// A way through the tree.
pub(super) type Path = Vec<Entry>;

impl Node {
    /// Every way from here to a limit, this node's entry first.
    fn limited(&self) -> Vec<Path> {
        let mut paths: Vec<Path> = self.limit.iter().map(|_| vec![self.entry.clone()]).collect();
        for child in &self.children {
            paths.extend(child.limited().into_iter().map(|rest| [vec![self.entry.clone()], rest].concat()));
        }
        paths
    }
}

/// Whether every descriptor that fits `narrow` fits `wide`.
fn covers(wide: &Entry, narrow: &Entry) -> bool {
    let fits = match (&wide.value, &narrow.value) {
        (Value::Any, _) => true,
        (Value::Prefix(wide), Value::Prefix(value) | Value::Exact(value)) => value.starts_with(wide.as_str()),
        (Value::Exact(wide), Value::Exact(value)) => wide == value,
        _ => false,
    };
    wide.key == narrow.key && fits
}

/// The tree goes down one branch only: a descriptor that fits a specific node is not limited by a less specific one beside it, also
/// where the specific one has nothing to say of it. These are the ways on which that makes a difference: unlimited ones.
pub(super) fn dead_ends(nodes: &[Node], above: &Path) -> Vec<(usize, Path)> {
    let mut found = Vec::new();
    for specific in nodes {
        let own = specific.limited();
        for wide in
            nodes.iter().filter(|wide| wide.entry != specific.entry && covers(&wide.entry, &specific.entry))
        {
            for path in wide.limited() {
                let known = own.iter().any(|own| {
                    own.len() == path.len()
                        && own.iter().zip(&path).skip(1).all(|(own, path)| covers(own, path))
                });
                if !known {
                    let end = [above.clone(), vec![specific.entry.clone()], path[1..].to_vec()].concat();
                    found.push((specific.line, end));
                }
            }
        }
        let above = [above.clone(), vec![specific.entry.clone()]].concat();
        found.extend(dead_ends(&specific.children, &above));
    }
    found
}
