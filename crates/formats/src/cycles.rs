//! Circles in a graph, without recursion: a chain may be as long as a plan.

/// Calls `found` with the nodes of a circle for every edge that closes one in a depth-first walk.
/// Taking all those edges away would leave no circle. Linear in nodes and edges.
pub(crate) fn each_cycle(edges: &[Vec<usize>], mut found: impl FnMut(&[usize])) {
    let mut place = vec![Visit::Ahead; edges.len()];
    for root in 0..edges.len() {
        if place[root] == Visit::Ahead {
            walk(root, edges, &mut place, &mut found);
        }
    }
}

/// Where a node is in relation to the walk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Visit {
    Ahead,
    /// With its index in the path.
    OnPath(usize),
    Behind,
}

fn walk(root: usize, edges: &[Vec<usize>], place: &mut [Visit], found: &mut impl FnMut(&[usize])) {
    let (mut path, mut next) = (vec![root], vec![0]);
    place[root] = Visit::OnPath(0);
    while let (Some(&node), Some(edge)) = (path.last(), next.last_mut()) {
        let Some(&target) = edges[node].get(*edge) else {
            place[node] = Visit::Behind;
            path.pop();
            next.pop();
            continue;
        };
        *edge += 1;
        match place[target] {
            Visit::Ahead => {
                place[target] = Visit::OnPath(path.len());
                path.push(target);
                next.push(0);
            }
            Visit::OnPath(start) => found(&path[start..]),
            Visit::Behind => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cycles(edges: &[&[usize]]) -> Vec<Vec<usize>> {
        let edges: Vec<Vec<usize>> = edges.iter().map(|targets| targets.to_vec()).collect();
        let mut all = Vec::new();
        each_cycle(&edges, |cycle| all.push(cycle.to_vec()));
        all
    }

    #[test]
    fn circles_are_found_once() {
        assert_eq!(cycles(&[]), Vec::<Vec<usize>>::new());
        assert_eq!(cycles(&[&[1, 2], &[2], &[]]), Vec::<Vec<usize>>::new());
        assert_eq!(cycles(&[&[0]]), [[0]]);
        assert_eq!(cycles(&[&[1], &[2], &[1, 0]]), [vec![1, 2], vec![0, 1, 2]]);
        assert_eq!(cycles(&[&[1], &[0], &[0, 3], &[2]]), [[0, 1], [2, 3]]);
    }
}
