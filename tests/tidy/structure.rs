//! The shape of the code: fields of a struct, files that its methods stand in, import cycles, and
//! files of a folder. What breaks a limit today is listed in `tests/tidy-structure.txt`. With
//! `TIDY_CYCLES` in the environment it prints which files of a long cycle name which.

use super::{Finding, Source, entries};
use std::collections::{BTreeMap, BTreeSet};
use syn::visit::Visit;
use syn::{Attribute, ImplItem, Item, Type, UseTree, Visibility};

/// Most fields of a struct.
const FIELDS_MAX: usize = 25;
/// Most files in which methods of one struct stand.
const IMPL_FILES_MAX: usize = 3;
/// Most files of one import cycle.
const CYCLE_FILES_MAX: usize = 3;
/// Most files of a folder.
const FOLDER_FILES_MAX: usize = 20;
/// The ratchet: what is over a limit today, with the number that it may have.
pub(super) const STRUCTURE: &str = "tests/tidy-structure.txt";

/// A path of names, from the root of a crate on.
type Names = Vec<String>;

/// One module with a file of its own, without its tests.
#[derive(Default)]
struct Module {
    file: String,
    /// What it imports: name here, and path.
    imports: BTreeMap<String, Names>,
    /// What it hands on under its own name.
    exports: BTreeMap<String, Names>,
    /// Modules of which it hands everything on.
    globs: Vec<Names>,
    /// Paths that its code names, from the root on.
    named: BTreeSet<Names>,
    /// Types that its `impl` blocks without a trait are for.
    implemented: BTreeSet<String>,
    /// Fields of each of its structs.
    fields: BTreeMap<String, usize>,
}

/// The modules of one crate.
type Crate = BTreeMap<Names, Module>;

/// The crate that a shipped file belongs to, and its module there.
fn place(path: &str) -> Option<(&str, Names)> {
    let at = if path.starts_with("src/") { 0 } else { path.find("/src/")? + 1 };
    let (root, rest) = path.split_at(at);
    let rest = rest.strip_prefix("src/")?.strip_suffix(".rs")?;
    let mut names: Names = rest.split('/').map(String::from).collect();
    if names.last().is_some_and(|last| matches!(last.as_str(), "mod" | "lib" | "main")) {
        names.pop();
    }
    Some((root, names))
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let syn::Meta::List(list) = &attribute.meta else { return false };
        list.path.is_ident("cfg")
            && list.tokens.to_string().split(['(', ' ', ',']).any(|w| w == "test")
    })
}

/// Collects what one file has.
struct Reader<'a> {
    here: Names,
    module: Module,
    children: &'a BTreeSet<Names>,
}

impl Reader<'_> {
    /// A path as the root of the crate has it; `None`: it leads out of the crate.
    fn absolute(&self, names: &[String]) -> Option<Names> {
        let mut base = self.here.clone();
        let mut rest = names;
        match rest.first()?.as_str() {
            "crate" => (base, rest) = (Names::new(), &rest[1..]),
            "self" => rest = &rest[1..],
            "super" => {
                while rest.first().is_some_and(|name| name == "super") {
                    base.pop()?;
                    rest = &rest[1..];
                }
            }
            first => {
                if let Some(import) = self.module.imports.get(first) {
                    (base, rest) = (import.clone(), &rest[1..]);
                } else {
                    let mut child = base.clone();
                    child.push(first.into());
                    self.children.contains(&child).then_some(())?;
                }
            }
        }
        base.extend(rest.iter().cloned());
        Some(base)
    }

    fn import(&mut self, tree: &UseTree, before: &mut Names, public: bool) {
        let (name, known_as) = match tree {
            UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.import(&path.tree, before, public);
                before.pop();
                return;
            }
            UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.import(tree, before, public));
                return;
            }
            UseTree::Glob(_) => {
                if let Some(path) = self.absolute(before) {
                    match public {
                        true => self.module.globs.push(path),
                        false => drop(self.module.named.insert(path)),
                    }
                }
                return;
            }
            UseTree::Name(name) => (name.ident.to_string(), name.ident.to_string()),
            UseTree::Rename(name) => (name.ident.to_string(), name.rename.to_string()),
        };
        let mut path = before.clone();
        let known_as = match name.as_str() {
            "self" => path.last().cloned().unwrap_or_default(),
            _ => {
                path.push(name);
                known_as
            }
        };
        let Some(path) = self.absolute(&path) else { return };
        if public {
            self.module.exports.insert(known_as, path);
        } else {
            self.module.imports.insert(known_as, path.clone());
            self.module.named.insert(path);
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes = match item {
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            Item::Mod(item) => &item.attrs,
            Item::Struct(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            _ => &Vec::new(),
        };
        if is_test(attributes) {
            return;
        }
        match item {
            Item::Use(item) => {
                let public = !matches!(item.vis, Visibility::Inherited);
                self.import(&item.tree, &mut Names::new(), public);
            }
            Item::Struct(item) => {
                self.module.fields.insert(item.ident.to_string(), item.fields.len());
            }
            Item::Impl(item) if item.trait_.is_none() => {
                let has_methods = item.items.iter().any(|item| matches!(item, ImplItem::Fn(_)));
                if let (Type::Path(path), true) = (&*item.self_ty, has_methods)
                    && let Some(last) = path.path.segments.last()
                {
                    self.module.implemented.insert(last.ident.to_string());
                }
            }
            Item::Mod(item) if item.content.is_some() => {
                self.here.push(item.ident.to_string());
                syn::visit::visit_item_mod(self, item);
                self.here.pop();
                return;
            }
            _ => {}
        }
        syn::visit::visit_item(self, item);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Names = path.segments.iter().map(|part| part.ident.to_string()).collect();
        if names.len() > 1
            && let Some(names) = self.absolute(&names)
        {
            self.module.named.insert(names);
        }
        syn::visit::visit_path(self, path);
    }
}

/// The module in which what a path names is defined.
fn home<'c>(modules: &'c Crate, path: &[String], depth: usize) -> Option<&'c Names> {
    let length = (0..=path.len()).rev().find(|length| modules.contains_key(&path[..*length]))?;
    let (here, module) = modules.get_key_value(&path[..length])?;
    let Some(name) = path.get(length).filter(|_| depth > 0) else { return Some(here) };
    if let Some(export) = module.exports.get(name) {
        return home(modules, export, depth - 1);
    }
    let defined = |at: &&Names| modules.get(*at).is_some_and(|m| m.fields.contains_key(name));
    let mut globs = module.globs.iter().filter_map(|glob| {
        let mut path = glob.clone();
        path.push(name.clone());
        home(modules, &path, depth - 1)
    });
    Some(globs.find(defined).unwrap_or(here))
}

/// How many steps of names that are handed on are followed.
const STEPS_MAX: usize = 8;

fn crates(sources: &[Source]) -> BTreeMap<&str, Crate> {
    let shipped =
        sources.iter().filter(|source| source.is("rs") && !source.test.iter().all(|t| *t));
    let places: Vec<_> =
        shipped.filter_map(|source| Some((place(&source.path)?, source))).collect();
    let mut modules: BTreeMap<&str, BTreeSet<Names>> = BTreeMap::new();
    for ((root, here), _) in &places {
        modules.entry(root).or_default().insert(here.clone());
    }
    let mut found: BTreeMap<&str, Crate> = BTreeMap::new();
    for ((root, here), source) in &places {
        let file = syn::parse_file(&source.lines.join("\n")).expect("a file that compiles");
        if is_test(&file.attrs) {
            continue;
        }
        let module = Module { file: source.path.clone(), ..Module::default() };
        let mut reader = Reader { here: here.clone(), module, children: &modules[root] };
        // imports first: paths of the code begin with them
        let is_use = |item: &&Item| matches!(item, Item::Use(_));
        let (imports, others): (Vec<_>, Vec<_>) = file.items.iter().partition(is_use);
        imports.into_iter().chain(others).for_each(|item| reader.visit_item(item));
        found.entry(root).or_default().insert(here.clone(), reader.module);
    }
    found
}

/// What is over a limit: the limit's name, what it is about, and the number.
type Excess = (&'static str, String, usize);

fn excesses(modules: &Crate) -> Vec<Excess> {
    let mut found = Vec::new();
    let mut impls: BTreeMap<(&Names, &str), BTreeSet<&str>> = BTreeMap::new();
    let mut edges: BTreeMap<&Names, BTreeSet<&Names>> = BTreeMap::new();
    for (here, module) in modules {
        for (name, fields) in module.fields.iter().filter(|(_, fields)| **fields > FIELDS_MAX) {
            found.push(("fields", format!("{}:{name}", module.file), *fields));
        }
        for name in &module.implemented {
            let import = module.imports.get(name);
            let home = import.and_then(|path| home(modules, path, STEPS_MAX)).unwrap_or(here);
            let name = import.and_then(|path| path.last()).unwrap_or(name);
            impls.entry((home, name)).or_default().insert(&module.file);
        }
        let to = module.named.iter().filter_map(|path| home(modules, path, STEPS_MAX));
        edges.insert(here, to.filter(|to| *to != here).collect());
    }
    for ((home, name), files) in impls.iter().filter(|(_, files)| files.len() > IMPL_FILES_MAX) {
        found.push(("impl-files", format!("{}:{name}", modules[*home].file), files.len()));
    }
    for cycle in cycles(&edges).iter().filter(|cycle| cycle.len() > CYCLE_FILES_MAX) {
        let files = cycle.iter().map(|names| modules[*names].file.as_str());
        found.push(("cycle", files.min().unwrap_or_default().into(), cycle.len()));
        if std::env::var_os("TIDY_CYCLES").is_some() {
            for from in cycle {
                let to = edges[from].iter().filter(|to| cycle.contains(*to));
                let to: Vec<_> = to.map(|names| names.join("::")).collect();
                println!("{} -> {}", from.join("::"), to.join(", "));
            }
        }
    }
    found
}

/// Groups of nodes that reach each other.
fn cycles<'n>(edges: &BTreeMap<&'n Names, BTreeSet<&'n Names>>) -> Vec<BTreeSet<&'n Names>> {
    let reach = |from: &'n Names| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(at) = open.pop() {
            open.extend(edges[at].iter().filter(|to| seen.insert(**to)));
        }
        seen
    };
    let reached: BTreeMap<_, _> = edges.keys().map(|node| (*node, reach(node))).collect();
    let cycle = |node: &&'n Names| -> BTreeSet<&'n Names> {
        reached[node].iter().filter(|other| reached[*other].contains(node)).copied().collect()
    };
    let all: BTreeSet<_> = edges.keys().map(cycle).filter(|cycle| cycle.len() > 1).collect();
    all.into_iter().collect()
}

fn folders(sources: &[Source]) -> Vec<Excess> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for source in sources.iter().filter(|source| place(&source.path).is_some()) {
        let folder = source.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        *counts.entry(folder).or_default() += 1;
    }
    let over = counts.into_iter().filter(|(_, files)| *files > FOLDER_FILES_MAX);
    over.map(|(folder, files)| ("folder", folder.to_string(), files)).collect()
}

/// Compares the tree with the limits, and with what the ratchet allows.
pub(super) fn structure(sources: &[Source], ratchet: &str) -> Vec<Finding> {
    let mut allowed: BTreeMap<(&str, String), usize> = BTreeMap::new();
    for line in entries(ratchet) {
        let mut words = line.split(' ');
        let mut word = || words.next().expect("`limit what number` in the ratchet");
        let (limit, what, number) = (word(), word(), word());
        allowed.insert((limit, what.into()), number.parse().expect("a number in the ratchet"));
    }
    let mut all = folders(sources);
    all.extend(crates(sources).values().flat_map(excesses));
    let mut found = Vec::new();
    for (limit, what, number) in all {
        let said = match allowed.remove(&(limit, what.clone())) {
            Some(allowed) if allowed == number => continue,
            Some(allowed) if allowed > number => {
                format!("say {number} in {STRUCTURE}, no more {allowed}")
            }
            Some(allowed) => format!("grew from {allowed} to {number}"),
            None => format!("{number}, which is over the limit"),
        };
        found.push(Finding { path: what, line: 0, what: format!("{limit}: {said}") });
    }
    for (limit, what) in allowed.keys() {
        let said = format!("{limit}: is within its limit: take it out of {STRUCTURE}");
        found.push(Finding { path: what.clone(), line: 0, what: said });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(files: &[(&str, &str)], ratchet: &str) -> Vec<String> {
        let sources: Vec<_> = files.iter().map(|(path, text)| Source::new(path, text)).collect();
        let found = structure(&sources, ratchet);
        found.into_iter().map(|f| format!("{} {}", f.path, f.what)).collect()
    }

    #[test]
    fn struct_with_many_fields_is_reported_and_the_ratchet_follows() {
        let fields: String = (0..26).map(|n| format!("f{n}: u8,")).collect();
        let file = [("src/a.rs", format!("struct S {{ {fields} }}"))];
        let file = file.each_ref().map(|(path, text)| (*path, text.as_str()));
        assert_eq!(said(&file, ""), ["src/a.rs:S fields: 26, which is over the limit"]);
        assert!(said(&file, "fields src/a.rs:S 26").is_empty());
        assert_eq!(said(&file, "fields src/a.rs:S 25"), ["src/a.rs:S fields: grew from 25 to 26"]);
        assert_eq!(said(&file, "fields src/a.rs:S 27").len(), 1);
        assert_eq!(said(&[], "fields src/a.rs:S 27").len(), 1);
    }

    #[test]
    fn methods_in_four_files_are_reported_through_names_that_are_handed_on() {
        let files = [
            ("src/a/mod.rs", "mod s; pub use s::S;"),
            ("src/a/s.rs", "pub struct S; impl S { fn a() {} }"),
            ("src/a/b.rs", "use super::S; impl S { fn b() {} }"),
            ("src/d.rs", "use crate::a::s::S as T; impl T { fn d() {} } impl Drop for T {}"),
            ("src/e.rs", "struct S; impl S { fn e() {} }"),
        ];
        assert!(said(&files, "").is_empty(), "{:?}", said(&files, ""));
        let more = ("src/f.rs", "use crate::a::S; impl<'a> S { fn f() {} }");
        let files: Vec<_> = files.into_iter().chain([more]).collect();
        assert_eq!(said(&files, ""), ["src/a/s.rs:S impl-files: 4, which is over the limit"]);
    }

    #[test]
    fn cycle_over_four_files_is_reported_and_not_that_of_tests() {
        let mut files = vec![
            ("src/a.rs", "use crate::b::B; pub struct A;"),
            ("src/b.rs", "pub struct B; fn f() { crate::c::f() }"),
            ("src/c.rs", "use super::d::D; pub fn f() {} mod g { use super::f; }"),
            ("src/d.rs", "pub struct D; #[cfg(test)] mod tests { use crate::a::A; }"),
        ];
        assert!(said(&files, "").is_empty());
        files[3].1 = "pub struct D; use crate::a::A;";
        assert_eq!(said(&files, ""), ["src/a.rs cycle: 4, which is over the limit"]);
    }

    #[test]
    fn folder_with_many_files_is_reported() {
        let names: Vec<_> = (0..21).map(|n| format!("src/a/f{n}.rs")).collect();
        let files: Vec<_> = names.iter().map(|name| (name.as_str(), "")).collect();
        assert!(said(&files[1..], "").is_empty());
        assert_eq!(said(&files, ""), ["src/a folder: 21, which is over the limit"]);
    }
}
