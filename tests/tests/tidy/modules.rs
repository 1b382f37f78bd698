//! The modules of a crate and what they import, read as text: follows `mod`, collects `use`
//! declarations, paths in code and `impl` blocks, and finds the file that defines each name,
//! through re-exports. Tests, comments and literals are not read, so that a path in
//! `#[serde(with = "...")]` is not seen; neither are names that a macro puts together.

use std::collections::{BTreeMap, BTreeSet};

use super::text::{is_word, without_tests, without_text};

/// The files that a crate may be made of: their text by their path.
pub type Files = BTreeMap<String, String>;

/// The modules of one crate, its root first.
pub struct Crate {
    modules: Vec<Module>,
}

struct Module {
    file: String,
    parent: Option<usize>,
    children: BTreeMap<String, usize>,
    /// What the module defines, its children apart.
    items: BTreeSet<String>,
    uses: Vec<Use>,
    /// Paths of two names or more that stand in the code.
    paths: Vec<Vec<String>>,
    /// The types of its `impl` blocks without a trait.
    impls: Vec<Vec<String>>,
}

/// One name that a `use` brings into a module.
struct Use {
    path: Vec<String>,
    /// `None` where it brings every name.
    name: Option<String>,
}

/// What a path leads to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Found {
    Module(usize),
    Item { module: usize, name: String },
}

/// A file that takes a name from another file of its crate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Import {
    pub from: String,
    pub to: String,
    pub name: String,
}

/// An `impl` block without a trait: its file, its type, and the file that defines the type.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Methods {
    pub of: String,
    pub defined_in: String,
    pub file: String,
}

impl Crate {
    /// Reads the crate whose root file is `root`.
    pub fn read(root: &str, files: &Files) -> Self {
        let mut new = Self { modules: Vec::new() };
        new.read_file(None, root, &folder_of(root), files);
        new
    }

    /// Every import between two files of which neither is a module above the other. A module that
    /// only hands a name on is not imported: the file that defines the name is.
    pub fn imports(&self) -> BTreeSet<Import> {
        let mut imports = BTreeSet::new();
        for (id, module) in self.modules.iter().enumerate() {
            for used in &module.uses {
                for found in self.follow(id, &used.path) {
                    // A module is imported for a path through it, and that path is read too.
                    let all = used.name.is_none().then(|| "*".to_owned());
                    imports.extend(self.import(id, &found, all));
                }
            }
            for path in &module.paths {
                for found in self.follow(id, path) {
                    imports.extend(self.import(id, &found, None));
                }
            }
        }
        imports
    }

    /// Every `impl` block without a trait whose type the crate defines.
    pub fn methods(&self) -> BTreeSet<Methods> {
        let mut methods = BTreeSet::new();
        for (id, module) in self.modules.iter().enumerate() {
            for found in module.impls.iter().flat_map(|path| self.follow(id, path)) {
                if let Found::Item { module: at, name } = found {
                    let defined_in = self.modules[at].file.clone();
                    methods.insert(Methods { of: name, defined_in, file: module.file.clone() });
                }
            }
        }
        methods
    }

    fn import(&self, from: usize, found: &Found, all: Option<String>) -> Option<Import> {
        let (to, name) = match (found, all) {
            (Found::Item { module, name }, _) => (*module, name.clone()),
            (Found::Module(module), Some(all)) => (*module, all),
            (Found::Module(_), None) => return None,
        };
        let (from, to) = (self.file_module(from), self.file_module(to));
        if self.is_above(from, to) || self.is_above(to, from) {
            return None;
        }
        let file = |id: usize| self.modules[id].file.clone();
        Some(Import { from: file(from), to: file(to), name })
    }

    /// The module that begins the file in which this one stands.
    fn file_module(&self, mut id: usize) -> usize {
        while let Some(parent) = self.modules[id].parent
            && self.modules[parent].file == self.modules[id].file
        {
            id = parent;
        }
        id
    }

    /// Whether `above` is `below` or a module around it.
    fn is_above(&self, above: usize, below: usize) -> bool {
        let up = |&id: &usize| self.modules[id].parent;
        std::iter::successors(Some(below), up).any(|id| id == above)
    }

    /// What `path` leads to when it stands in `from`: nothing where it leaves the crate.
    fn follow(&self, from: usize, path: &[String]) -> Vec<Found> {
        self.resolve(from, path, &mut BTreeSet::new())
    }

    /// The same. `seen` are the `use` declarations that the path went through.
    fn resolve(
        &self,
        from: usize,
        path: &[String],
        seen: &mut BTreeSet<(usize, usize)>,
    ) -> Vec<Found> {
        let Some((first, rest)) = path.split_first() else { return Vec::new() };
        let mut here = match first.as_str() {
            "crate" => vec![Found::Module(0)],
            "self" => vec![Found::Module(from)],
            "super" => self.modules[from].parent.map(Found::Module).into_iter().collect(),
            name => self.named(from, name, seen),
        };
        for name in rest {
            let modules = here.iter().any(|found| matches!(found, Found::Module(_)));
            let mut next = Vec::new();
            for found in here {
                match found {
                    Found::Module(id) if name == "super" => {
                        next.extend(self.modules[id].parent.map(Found::Module));
                    }
                    Found::Module(id) => next.extend(self.member(id, name, seen)),
                    // A function beside a module of its name is not what a path goes through.
                    Found::Item { .. } if modules => {}
                    // A variant, or what an `impl` block defines.
                    item @ Found::Item { .. } => next.push(item),
                }
            }
            here = next;
        }
        here
    }

    /// What a module has under a name. What is not found there is taken to be made by a macro, or
    /// to come from another crate.
    fn member(&self, id: usize, name: &str, seen: &mut BTreeSet<(usize, usize)>) -> Vec<Found> {
        let found = self.named(id, name, seen);
        if found.is_empty() {
            return vec![Found::Item { module: id, name: name.to_owned() }];
        }
        found
    }

    /// What a name stands for in a module: what it defines, its child, what it imports.
    fn named(&self, id: usize, name: &str, seen: &mut BTreeSet<(usize, usize)>) -> Vec<Found> {
        let module = &self.modules[id];
        let mut found = Vec::new();
        if module.items.contains(name) {
            found.push(Found::Item { module: id, name: name.to_owned() });
        }
        found.extend(module.children.get(name).copied().map(Found::Module));
        for (number, used) in module.uses.iter().enumerate() {
            if used.name.as_deref() == Some(name) && seen.insert((id, number)) {
                found.extend(self.resolve(id, &used.path, seen));
            }
        }
        if !found.is_empty() {
            return found;
        }
        for (number, used) in module.uses.iter().enumerate() {
            if used.name.is_none() && seen.insert((id, number)) {
                for all in self.resolve(id, &used.path, seen) {
                    if let Found::Module(all) = all {
                        found.extend(self.named(all, name, seen));
                    }
                }
                seen.remove(&(id, number));
            }
        }
        found
    }

    // ---- Reading.

    fn add(&mut self, parent: Option<usize>, file: &str) -> usize {
        self.modules.push(Module {
            file: file.to_owned(),
            parent,
            children: BTreeMap::new(),
            items: BTreeSet::new(),
            uses: Vec::new(),
            paths: Vec::new(),
            impls: Vec::new(),
        });
        self.modules.len() - 1
    }

    /// Reads a file and those of the modules that it declares, which lie below `folder`.
    fn read_file(
        &mut self,
        parent: Option<usize>,
        path: &str,
        folder: &str,
        files: &Files,
    ) -> usize {
        let text = files.get(path).unwrap_or_else(|| panic!("no file {path}, but a module of it"));
        let raw: Vec<char> = text.chars().collect();
        let tokens = tokens(&without_tests(&without_text(text)));
        let own = self.add(parent, path);
        // The modules whose braces are open: each with the depth of its items and its folder.
        let mut open = vec![(own, 0, folder.to_owned())];
        let (mut depth, mut at) = (0, 0);
        while let Some(token) = tokens.get(at) {
            let (id, level, folder) = open.last().cloned().expect("the file is one");
            let next = |offset: usize| tokens.get(at + offset).map_or("", |t| t.text.as_str());
            match token.text.as_str() {
                "{" => depth += 1,
                "}" => {
                    depth =
                        usize::checked_sub(depth, 1).unwrap_or_else(|| panic!("{path}: braces"));
                    if depth < level {
                        open.pop();
                    }
                }
                "mod" if next(2) == "{" => {
                    let inner = self.add(Some(id), path);
                    self.modules[id].children.insert(next(1).to_owned(), inner);
                    open.push((inner, depth + 1, format!("{folder}{}/", next(1))));
                }
                "mod" if next(2) == ";" => {
                    let (file, below) = match path_attribute(&tokens[..at], &raw) {
                        Some(named) => {
                            let file = plain(&format!("{}{named}", folder_of(path)));
                            let below = folder_of(&file);
                            (file, below)
                        }
                        None => place_of(&folder, next(1), files),
                    };
                    let name = next(1).to_owned();
                    let child = self.read_file(Some(id), &file, &below, files);
                    self.modules[id].children.insert(name, child);
                }
                _ => at += self.read_token(id, &tokens, at, depth == level),
            }
            at += 1;
        }
        assert_eq!(depth, 0, "{path}: braces are not closed");
        own
    }

    /// Notes what the token at `at` begins in module `id`; how many tokens behind it are done.
    /// `is_item`: whether items of the module stand here, and not the inside of one.
    fn read_token(&mut self, id: usize, tokens: &[Token], at: usize, is_item: bool) -> usize {
        const DEFINING: &[&str] =
            &["fn", "struct", "enum", "union", "trait", "type", "static", "const"];
        let module = &mut self.modules[id];
        let get = |at: usize| tokens.get(at).map_or("", |t| t.text.as_str());
        let before = at.checked_sub(1).map_or("", &get);
        match get(at) {
            // `use<'a>` belongs to a type.
            "use" if get(at + 1) != "<" => {
                let mut end = at + 1;
                read_use(tokens, &mut end, Vec::new(), &mut module.uses);
                end - 1 - at
            }
            "impl" if ["", "}", "{", ";", "]", "unsafe"].contains(&before) => {
                module.impls.extend(impl_type(&tokens[at + 1..]));
                0
            }
            "macro_rules" if get(at + 1) == "!" => {
                module.items.insert(get(at + 2).to_owned());
                2
            }
            word if is_item && DEFINING.contains(&word) => {
                let name = if get(at + 1) == "mut" { get(at + 2) } else { get(at + 1) };
                if name.starts_with(is_word) && !["fn", "unsafe", "extern"].contains(&name) {
                    module.items.insert(name.to_owned());
                }
                0
            }
            word if word.starts_with(is_word) && before != "::" && get(at + 1) == "::" => {
                let path = path_at(tokens, at);
                let done = 2 * (path.len() - 1);
                if path.len() > 1 {
                    module.paths.push(path);
                }
                done
            }
            _ => 0,
        }
    }
}

/// A word of code or a mark, and which character of the file it begins with.
struct Token {
    text: String,
    at: usize,
}

fn tokens(code: &str) -> Vec<Token> {
    let chars: Vec<char> = code.chars().collect();
    let mut tokens = Vec::new();
    let mut at = 0;
    while at < chars.len() {
        let word = chars[at..].iter().take_while(|c| is_word(**c)).count();
        let pair: String = chars[at..].iter().take(2).collect();
        let length = match pair.as_str() {
            _ if word > 0 => word,
            "::" | "->" | "=>" => 2,
            _ => 1,
        };
        if !chars[at].is_whitespace() {
            tokens.push(Token { text: chars[at..at + length].iter().collect(), at });
        }
        at += length;
    }
    tokens
}

/// The names of the path that begins at `at`.
fn path_at(tokens: &[Token], at: usize) -> Vec<String> {
    let mut path = Vec::new();
    for pair in tokens[at..].chunks(2) {
        if !pair[0].text.starts_with(is_word) {
            break;
        }
        path.push(pair[0].text.clone());
        if pair.get(1).is_none_or(|mark| mark.text != "::") {
            break;
        }
    }
    path
}

/// Reads one tree of a `use` declaration, and leaves `at` behind it.
fn read_use(tokens: &[Token], at: &mut usize, mut path: Vec<String>, uses: &mut Vec<Use>) {
    while let Some(token) = tokens.get(*at) {
        *at += 1;
        let next = tokens.get(*at).map_or("", |t| t.text.as_str());
        match token.text.as_str() {
            "::" => {}
            "*" => return uses.push(Use { path, name: None }),
            "{" => {
                while tokens.get(*at).is_some_and(|token| token.text != "}") {
                    read_use(tokens, at, path.clone(), uses);
                    if tokens.get(*at).is_some_and(|token| token.text == ",") {
                        *at += 1;
                    }
                }
                *at += 1;
                return;
            }
            word => {
                // In braces `self` is what stands before them.
                if word != "self" || path.is_empty() {
                    path.push(word.to_owned());
                }
                if next == "::" {
                    continue;
                }
                let mut name = path.last().cloned();
                if next == "as" {
                    name = tokens.get(*at + 1).map(|token| token.text.clone());
                    *at += 2;
                }
                return uses.push(Use { path, name });
            }
        }
    }
}

/// The type of an `impl` block whose tokens these are, if it has no trait.
fn impl_type(tokens: &[Token]) -> Option<Vec<String>> {
    let mut depth = 0_usize;
    let mut start = None;
    for (at, token) in tokens.iter().enumerate() {
        match token.text.as_str() {
            "<" => depth += 1,
            ">" => depth = depth.saturating_sub(1),
            "for" if depth == 0 => return None,
            "{" | "where" | ";" if depth == 0 => break,
            _ if depth == 0 && start.is_none() => start = Some(at),
            _ => {}
        }
    }
    start.map(|at| path_at(tokens, at)).filter(|path| !path.is_empty())
}

/// What `#[path = "..."]` says before the item whose tokens come after these.
fn path_attribute(before: &[Token], raw: &[char]) -> Option<String> {
    let ends = |token: &Token| [";", "}"].contains(&token.text.as_str());
    let first = before.iter().rposition(ends).map_or(0, |at| at + 1);
    let at = before[first..].windows(2).position(|it| it[0].text == "path" && it[1].text == "=")?;
    let rest: String = raw[before[first + at].at..].iter().collect();
    rest.split('"').nth(1).map(str::to_owned)
}

/// The file of a module that is declared in `folder`, and the folder of its own children.
fn place_of(folder: &str, name: &str, files: &Files) -> (String, String) {
    let below = format!("{folder}{name}/");
    let beside = format!("{folder}{name}.rs");
    let file = if files.contains_key(&beside) { beside } else { format!("{below}mod.rs") };
    (file, below)
}

/// The folder of a file, with its slash.
fn folder_of(path: &str) -> String {
    path.rfind('/').map_or("", |slash| &path[..=slash]).to_owned()
}

/// A path without `..`.
fn plain(path: &str) -> String {
    let mut names = Vec::new();
    for name in path.split('/') {
        if name == ".." {
            names.pop();
        } else {
            names.push(name);
        }
    }
    names.join("/")
}
